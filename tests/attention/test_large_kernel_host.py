"""The large-head and decoding kernels without a GPU: their sources built for the CPU.

The matrix instructions are replaced by `tensor_core_host.h`; tiles, pitches, the order of keys and
queries in registers, the Python around them and the operator are what runs on a GPU.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hyla.attention import AttentionSpec, DistanceBias, attention
from hyla.attention.dispatch import choose_path
from hyla.attention.kernels import choice, decode, large_head
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.choice import KERNELS, choose_kernel
from hyla.attention.kernels.formula import Formula, read_sources
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.kernels.packing import Packing
from hyla.attention.kernels.plans.linear import LinearPlan
from hyla.attention.kernels.plans.plain import PlainPlan
from hyla.attention.kernels.plans.tensor_core import TensorCorePlan
from kernel_host import HostBuilds, kept_builds, needs_host_build, on_the_host

pytestmark = needs_host_build

SCALE, EPS = 0.2, 1e-6
SOFTMAXES = ("softmax", "softmax+rms_head", "rms_head+softmax")


@pytest.fixture(autouse=True)
def host(builds, monkeypatch):
    on_the_host(monkeypatch, builds, large_head, decode)


@dataclass(frozen=True)
class Case:
    H: int
    D: int
    Tq: int
    Tk: int
    B: int = 1
    biases: int = 0  # 0: no bias
    causal: bool = False
    padding: bool = False
    normalisation: str = "rms_head"
    value: str = "hidden"
    phi: str = "silu"  # smooth: rounding decides nothing
    deterministic: bool = False
    multipliers: int = 0  # of the codes, as attention dropout: 0: none
    dtype: torch.dtype = torch.bfloat16

    @property
    def spec(self):
        steps = tuple(self.normalisation.split("+"))
        return AttentionSpec(normalisation=steps, value=self.value, phi=self.phi)

    @property
    def formula(self):
        return Formula(
            normalisation=self.normalisation,
            value=self.value,
            phi=self.phi,
            scale=SCALE,
            eps=EPS,
            causal=self.causal,
        )


CASES = [
    Case(8, 64, 20, 40),
    Case(8, 64, 33, 33, causal=True, deterministic=True),
    Case(8, 16, 17, 17, causal=True, phi="gelu", normalisation="none", dtype=torch.float16),
    Case(3, 32, 40, 9, B=2, biases=1),
    Case(3, 32, 9, 18, B=2, biases=2, causal=True, deterministic=True),
    Case(12, 80, 9, 18, causal=True, phi="identity"),
    Case(16, 64, 18, 18, causal=True, padding=True, B=2),
    Case(24, 32, 10, 20, phi="gelu_tanh"),
    Case(1, 24, 5, 3, causal=True, normalisation="none"),
    # Several tiles of keys, and queries that see none.
    Case(8, 64, 70, 140, B=2, biases=2, padding=True),
    Case(8, 64, 100, 30, causal=True),
    Case(5, 64, 40, 130, causal=True, normalisation="none", dtype=torch.float16),
    # Rows that a cluster of two or four blocks shares.
    Case(32, 64, 33, 33, causal=True),
    Case(32, 64, 17, 40, B=2, biases=2, padding=True, deterministic=True),
    Case(16, 128, 20, 35, causal=True, padding=True, deterministic=True, dtype=torch.float16),
    Case(32, 128, 40, 40, causal=True, phi="gelu"),
    Case(32, 128, 9, 20, biases=1, normalisation="none", deterministic=True),
    Case(20, 48, 18, 17, B=2, biases=1, causal=True, phi="gelu_tanh"),
    Case(12, 100, 33, 18, padding=True),
    Case(17, 128, 3, 5, normalisation="none", phi="identity"),
    # More than 32 heads, or float32: plain arithmetic.
    Case(40, 64, 9, 11, causal=True),
    Case(48, 32, 5, 9, padding=True, deterministic=True, dtype=torch.float16),
    Case(64, 64, 3, 5),
    Case(8, 64, 40, 20, causal=True, dtype=torch.float32),
    Case(8, 64, 20, 40, B=2, biases=1, padding=True, deterministic=True, dtype=torch.float32),
    Case(3, 32, 9, 18, B=2, biases=2, causal=True, phi="gelu", dtype=torch.float32),
    Case(12, 80, 17, 36, causal=True, normalisation="none", dtype=torch.float32),
    Case(24, 80, 9, 9, phi="gelu_tanh", dtype=torch.float32),
    Case(64, 32, 9, 6, phi="identity", dtype=torch.float32),
    Case(1, 24, 2, 1, normalisation="none", dtype=torch.float32),
    # Linear value networks, on tensor cores and in plain arithmetic.
    Case(8, 64, 33, 33, causal=True, value="linear"),
    Case(8, 64, 70, 90, value="linear", normalisation="none"),
    Case(8, 32, 40, 70, B=2, causal=True, padding=True, deterministic=True, value="linear"),
    Case(12, 80, 9, 18, causal=True, value="linear"),
    Case(24, 32, 37, 37, B=2, biases=1, causal=True, value="linear"),
    Case(4, 128, 20, 20, causal=True, deterministic=True, value="linear", dtype=torch.float16),
    Case(1, 24, 5, 3, causal=True, normalisation="none", value="linear"),
    Case(32, 64, 9, 11, causal=True, value="linear"),
    Case(3, 32, 9, 18, B=2, biases=2, causal=True, deterministic=True, value="linear"),
    Case(16, 64, 18, 18, B=2, causal=True, padding=True, value="linear", dtype=torch.float16),
    Case(8, 64, 20, 40, B=2, biases=1, padding=True, value="linear", dtype=torch.float32),
    Case(24, 80, 17, 9, causal=True, deterministic=True, value="linear", dtype=torch.float32),
    Case(12, 48, 9, 21, normalisation="none", value="linear", dtype=torch.float32),
    # Softmaxes whose rows are summed by passes of their own: float32, more heads than tensor cores
    # take, a bias or padding, a causal row that does not start at the first key.
    *[
        replace(case, normalisation=normalisation)
        for normalisation in SOFTMAXES
        for case in (
            Case(8, 64, 20, 40, B=2, causal=True, dtype=torch.float32),
            Case(3, 32, 9, 18, B=2, biases=1, padding=True, dtype=torch.float32),
            Case(12, 80, 33, 17, biases=1, causal=True, deterministic=True),
            Case(12, 48, 9, 21, value="linear", deterministic=True, dtype=torch.float16),
            Case(40, 64, 9, 11, causal=True),
            Case(8, 32, 9, 18, B=2, multipliers=2, causal=True, dtype=torch.float32),
        )
    ],
    # Attention dropout, in plain arithmetic.
    Case(8, 64, 20, 40, B=2, multipliers=1, causal=True, dtype=torch.float32),
    Case(3, 32, 9, 18, B=2, multipliers=2, biases=1, padding=True, dtype=torch.float32),
    Case(12, 48, 17, 17, multipliers=1, normalisation="none", deterministic=True),
    Case(8, 32, 17, 9, multipliers=1, causal=True, value="linear", dtype=torch.float16),
]


def draw(case) -> tuple[tuple[Any, ...], Any, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(case.dtype)

    q, upstream = (normal(case.B, case.Tq, case.H, case.D) for _ in "qg")
    k, v = (normal(case.B, case.Tk, case.H, case.D) for _ in "kv")
    bias = normal(case.biases, case.H, case.Tq, case.Tk) if case.biases else None
    if case.biases == 1:  # as under autocast
        bias = bias.float()
    padding = torch.rand(case.B, case.Tk, generator=generator) > 0.3 if case.padding else None
    return (q, k, v, bias), padding, upstream


def multiplier_of(case):
    """Draw zeros, and numbers of which none could be mistaken for 1."""
    if not case.multipliers:
        return None
    shape = (case.multipliers, case.Tq, case.Tk)
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(5))
    return (drawn > 0.4) * (1.5 + drawn)


def exact(case, q, k, v, bias=None, padding=None):
    multiplier = multiplier_of(case)
    if multiplier is not None:
        multiplier = multiplier.repeat_interleave(case.B // case.multipliers, dim=0)[:, None]
    return attention(
        *(q, k, v),
        attention=case.spec,
        bias=bias,
        mask=None if padding is None else padding[:, None, None],
        code_multiplier=multiplier,
        causal=case.causal,
        scale=SCALE,
        eps=EPS,
        backend="reference",
    )


def fused(case, q, k, v, bias=None, padding=None):
    options = {"bias": bias, "padding": padding, "deterministic": case.deterministic}
    call = Call(q, k, v, formula=case.formula, multiplier=multiplier_of(case), **options)
    return fused_attention("large_head", call)


def with_gradients(function, case, inputs, padding, upstream, dtype):
    exact = dtype == torch.float64
    leaves = [
        None if x is None else x.detach().to(dtype if exact else x.dtype).requires_grad_()
        for x in inputs
    ]
    output = function(case, *leaves, padding)
    output.backward(upstream.to(dtype))
    return [output.detach(), *(x.grad for x in leaves if x is not None)]


def relative_error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case):
    inputs, padding, upstream = draw(case)
    want = with_gradients(exact, case, inputs, padding, upstream, torch.float64)
    got = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    unit = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-20}[case.dtype]
    for name, ours, truth in zip(("output", "dq", "dk", "dv", "dbias"), got, want, strict=False):
        assert relative_error(ours, truth) < 2 * unit, name


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 36, 63, 96, 127])
def test_every_length_in_plain_arithmetic(tokens):
    test_output_and_gradients(Case(3, 32, tokens, tokens, causal=True, dtype=torch.float32))


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 31, 49])
def test_every_length_of_a_wide_row(tokens):
    test_output_and_gradients(Case(16, 128, tokens, tokens, causal=True))


@pytest.mark.parametrize(
    ("queries", "keys", "products"),
    [
        *[(*tile, {}) for tile in ((32, 32), (32, 64), (64, 16), (64, 64), (128, 16))],
        *[(queries, 64, {"warpgroups": True}) for queries in (32, 64)],
    ],
    ids=str,
)
def test_every_forward_plan_computes_the_same(queries, keys, products):
    case = Case(8, 32, 70, 140, causal=True)
    (q, k, v, _), _, _ = draw(case)
    plan = TensorCorePlan(queries=queries, keys=keys, warps=8, **products)
    call = Call(q, k, v, formula=case.formula)
    got = large_head.forward(call, plan=plan)
    torch.testing.assert_close(got, large_head.forward(call))


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("tokens", [1, 32, 33, 64, 97, 150])
def test_scores_by_warpgroups_are_those_by_warps(tokens, width):
    case = Case(3, width, tokens, tokens, B=5, causal=True)  # late and early products
    (q, k, v, _), _, _ = draw(case)
    call = Call(q, k, v, formula=case.formula)
    plan = large_head.choose_plan("forward", q)
    assert isinstance(plan, TensorCorePlan)
    assert plan.warpgroups
    by_warps = large_head.forward(call, plan=replace(plan, warpgroups=False))
    torch.testing.assert_close(large_head.forward(call), by_warps)


@pytest.mark.parametrize("pass_name", ["query", "key"])
@pytest.mark.parametrize(
    ("heads", "width", "queries", "keys", "stages"),
    [
        *((8, 64, 16, 32, 1), (8, 64, 16, 16, 2), (8, 64, 8, 32, 2), (8, 64, 8, 16, 1)),
        *((12, 32, 16, 16, 2), (12, 32, 8, 32, 1), (8, 16, 16, 32, 2), (8, 128, 8, 16, 1)),
    ],
)
def test_every_backward_plan_computes_the_same(
    heads, width, queries, keys, stages, pass_name, monkeypatch
):
    case = Case(heads, width, 37, 50, causal=True, phi="relu", deterministic=True)
    inputs, padding, upstream = draw(case)
    want = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    plan = TensorCorePlan(queries=queries, keys=keys, warps=8, stages=stages)
    chosen = large_head.choose_plan
    monkeypatch.setattr(
        large_head,
        "choose_plan",
        lambda name, *given: plan if name == pass_name else chosen(name, *given),
    )
    got = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    for ours, theirs in zip(got, want, strict=True):
        assert relative_error(ours, theirs.double()) < 2**-8


@pytest.mark.parametrize("tokens", [1, 15, 17, 49])
@pytest.mark.parametrize(("heads", "width"), [(8, 64), (3, 16), (16, 64), (24, 32), (8, 128)])
def test_additions_in_bulk_are_those_one_by_one(heads, width, tokens, monkeypatch):
    case = Case(heads, width, tokens, tokens, B=2, causal=True)
    inputs, padding, upstream = draw(case)
    in_bulk = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    chosen = large_head.choose_plan

    def without(name, *given):
        plan = chosen(name, *given)
        assert isinstance(plan, TensorCorePlan)
        assert plan.bulk == (name == "key")
        return replace(plan, bulk=False)

    monkeypatch.setattr(large_head, "choose_plan", without)
    one_by_one = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    for ours, theirs in zip(in_bulk, one_by_one, strict=True):
        assert torch.equal(ours, theirs)


def test_relu_where_all_hidden_units_of_a_pair_agree():
    case = Case(8, 32, 16, 16, phi="relu")
    (q, k, v, _), _, _ = draw(case)
    v = torch.full_like(v, -1.0)
    got = fused(case, q, k, v, None, None)
    want = exact(case, q.double(), k.double(), v.double(), None, None)
    assert relative_error(got, want) < 2**-7


@pytest.mark.parametrize(
    "case",
    [
        Case(8, 32, 37, 37, causal=True),
        Case(16, 128, 37, 37, causal=True),
        Case(8, 32, 37, 37, causal=True, normalisation="rms_head+softmax"),
        Case(8, 32, 37, 37, causal=True, value="linear"),
        Case(8, 32, 37, 37, causal=True, dtype=torch.float32),
        Case(8, 32, 37, 37, causal=True, value="linear", dtype=torch.float32),
        *[
            Case(8, 32, 37, 37, causal=True, normalisation=name, dtype=torch.float32)
            for name in SOFTMAXES
        ],
    ],
    ids=str,
)
def test_packed_sequences_do_not_see_each_other(case):
    (q, k, v, _), _, upstream = draw(case)
    starts = torch.tensor([0, 5, 5, 22, 37], dtype=torch.int32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    packing = Packing(starts, starts, 17, 17)
    together = fused_attention("large_head", Call(*leaves, packing=packing, formula=case.formula))
    gradients = torch.autograd.grad(together, leaves, upstream)
    for a, b in ((0, 5), (5, 22), (22, 37)):
        alone = [x[:, a:b].detach().requires_grad_() for x in leaves]
        output = fused(case, *alone)
        torch.testing.assert_close(together[:, a:b], output)
        for whole, part in zip(
            gradients, torch.autograd.grad(output, alone, upstream[:, a:b]), strict=True
        ):
            torch.testing.assert_close(whole[:, a:b], part)


def test_masks_and_biases_of_any_stride():
    case = Case(8, 32, 12, 12, B=2, biases=1, padding=True)
    (q, k, v, _), _, _ = draw(case)
    padding = torch.rand(12, generator=torch.Generator().manual_seed(3)) > 0.3
    bias = torch.randn(8, 1, 1, generator=torch.Generator().manual_seed(4))
    whole = (bias.expand(1, 8, 12, 12).contiguous(), padding.expand(2, 12).contiguous())
    expanded = (bias.expand(1, 8, 12, 12), padding.expand(2, 12))
    for kernel, queries in (("large_head", 12), ("decode", 1)):
        expected, got = (
            fused_attention(
                kernel,
                Call(
                    *(q[:, :queries], k, v), bias=b[:, :, :queries], padding=p, formula=case.formula
                ),
            )
            for b, p in (whole, expanded)
        )
        assert torch.equal(got, expected)


@pytest.mark.parametrize("normalisation", ["rms_head", *SOFTMAXES])
def test_padded_tokens_may_hold_anything_in_plain_arithmetic(normalisation):
    case = Case(8, 32, 12, 20, B=2, causal=True, padding=True, dtype=torch.float32)
    case = replace(case, normalisation=normalisation)
    inputs, padding, upstream = draw(case)
    padding[0] = False
    clean = with_gradients(fused, case, inputs, padding, upstream, torch.float32)
    q, k, v, _ = inputs
    k, v = (x.masked_fill(~padding[:, :, None, None], float("nan")) for x in (k, v))
    dirty = with_gradients(fused, case, (q, k, v, None), padding, upstream, torch.float32)
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_relu_hides_no_nan(dtype):
    case = Case(8, 32, 9, 9, B=2, normalisation="none", phi="relu", dtype=dtype)
    (q, k, v, _), _, upstream = draw(case)
    v[0, 2] = torch.nan  # all queries of the first see it
    results = with_gradients(fused, case, (q, k, v, None), None, upstream, dtype)
    output, dq, dk, dv = results
    assert all(x.isnan().all() for x in (output[0], dq[0], dk[0, 2]))
    assert all(x[1].isfinite().all() for x in (output, dq, dk, dv))


def some_of(bias):
    return torch.rand(bias.shape, generator=torch.Generator().manual_seed(2)) > 0.6


@pytest.mark.parametrize(
    "case",
    [
        Case(8, 32, 20, 9, B=2, biases=1),
        Case(8, 64, 9, 18, B=2, biases=2, causal=True, padding=True, deterministic=True),
        Case(12, 32, 9, 9, biases=1, normalisation="none", dtype=torch.float16),
        Case(24, 32, 9, 9, biases=1),
        Case(8, 64, 20, 9, B=2, biases=1, causal=True, value="linear"),
        Case(12, 32, 9, 18, biases=1, padding=True, deterministic=True, value="linear"),
        Case(32, 64, 9, 11, biases=1),
        Case(20, 128, 9, 18, biases=1, causal=True, normalisation="none", deterministic=True),
        # More than 32 heads, or float32: plain arithmetic.
        Case(40, 64, 9, 11, biases=1),
        Case(8, 64, 20, 9, B=2, biases=1, padding=True, dtype=torch.float32),
        Case(3, 32, 9, 18, B=2, biases=2, causal=True, deterministic=True, dtype=torch.float32),
        Case(3, 32, 9, 9, biases=1, normalisation="none", dtype=torch.float32),
        Case(8, 64, 20, 9, B=2, biases=1, causal=True, value="linear", dtype=torch.float32),
        *[
            Case(8, 32, 20, 9, B=2, biases=1, normalisation=name, dtype=torch.float32)
            for name in SOFTMAXES
        ],
    ],
    ids=str,
)
def test_a_bias_of_minus_infinity_masks_the_pair(case):
    (q, k, v, bias), padding, upstream = draw(case)
    masked = some_of(bias)
    masked[:, :, 0] = True  # a query that sees no key
    inputs = (q, k, v, bias.masked_fill(masked, -torch.inf))
    want = with_gradients(exact, case, inputs, padding, upstream, torch.float64)
    got = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    unit = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-20}[case.dtype]
    for name, ours, truth in zip(("output", "dq", "dk", "dv", "dbias"), got, want, strict=True):
        assert relative_error(ours, truth) < 2 * unit, name
    output, dq, *_, dbias = got
    assert not output[:, 0].any()
    assert not dq[:, 0].any()
    assert not dbias[masked].any()


@pytest.mark.parametrize("normalisation", ["rms_head", *SOFTMAXES])
def test_not_even_a_nan_comes_from_a_later_token_in_plain_arithmetic(normalisation):
    case = Case(8, 32, 40, 40, causal=True, normalisation=normalisation, dtype=torch.float32)
    (q, k, v, _), _, _ = draw(case)
    want = fused(case, q, k, v, None, None)[:, :21]
    hole = torch.zeros(40, 1, 1)
    hole[21] = torch.nan
    for to_k, to_v in ((hole, hole), (hole, 0), (0, hole)):
        output = fused(case, q, k + to_k, v + to_v, None, None)
        assert torch.equal(output[:, :21], want)
        assert output[:, 21:].isnan().all()


@pytest.mark.parametrize("normalisation", SOFTMAXES)
def test_a_row_of_one_key_has_no_gradient(normalisation):
    """Its code is 1 whatever its score; rounding must not make a gradient of that."""
    case = Case(8, 32, 9, 9, normalisation=normalisation, dtype=torch.float32)
    (q, k, v, _), _, upstream = draw(case)
    k, v = k[:, :1], v[:, :1]
    if normalisation.startswith("softmax"):  # scores whose logarithms of sums are rounded
        k = 300 * k
    _, dq, dk, _ = with_gradients(fused, case, (q, k, v, None), None, upstream, torch.float32)
    assert (dq == 0).all()
    assert (dk == 0).all()


def test_float16_gradients_stay_finite_where_the_reference_is():
    case = Case(8, 32, 9, 9, dtype=torch.float16)
    (q, k, v, _), _, upstream = draw(case)
    inputs = (q * 0.01, k * 0.01, v * 100, None)
    results = with_gradients(fused, case, inputs, None, upstream, torch.float16)
    assert all(x.isfinite().all() for x in results)


def test_a_scale_of_zero_has_no_gradient():
    case = Case(8, 32, 9, 9)
    (q, k, v, _), _, upstream = draw(case)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    formula = replace(case.formula, scale=0.0)
    output = fused_attention("large_head", Call(*leaves, formula=formula))
    assert all((x == 0).all() for x in torch.autograd.grad(output, leaves, upstream))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in jvp
def test_forward_mode_is_refused():
    q = torch.randn(1, 5, 8, 32, dtype=torch.bfloat16)
    formula = Case(8, 32, 5, 5).formula

    def run(x):
        return fused_attention("large_head", Call(x, x, x, formula=formula))

    with pytest.raises(ValueError, match="forward-mode"):
        torch.func.jvp(run, (q,), (q,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ValueError, match="forward-mode"):
        run(torch.autograd.forward_ad.make_dual(q, q))


def test_gradients_outside_of_vmap_are_foreseen():
    q = torch.randn(2, 1, 1, 32, 64, dtype=torch.bfloat16)
    formula = Case(32, 64, 1, 1).formula

    def loss(x):
        run = torch.func.vmap(lambda x: fused_attention("decode", Call(x, x, x, formula=formula)))
        return run(x).float().sum()

    with pytest.raises(ValueError, match="no gradient"):
        torch.func.grad(loss)(q)


def test_no_batch_at_all():
    case = Case(8, 32, 5, 5)
    q = torch.zeros(0, 5, 8, 32, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.zeros(0, 8, 5, 5, requires_grad=True)
    for deterministic in (False, True):
        options = {"formula": case.formula, "deterministic": deterministic}
        output = fused_attention("large_head", Call(q, q, q, bias=bias, **options))
        output.sum().backward()
    assert output.shape == q.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_strided_and_expanded_inputs(dtype):
    case = Case(8, 32, 18, 18, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    packed = torch.randn(2, 18, 3, 8, 32, generator=generator).to(dtype)
    q, k, v = packed.unbind(2)
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    expected = fused(case, *(x.contiguous() for x in (q, k, v)))
    assert torch.equal(fused(case, q, k, v, None, None), expected)
    assert torch.equal(fused(case, heads_first, k, v, None, None), expected)
    misaligned = torch.cat([q.flatten()[:1], q.flatten()])[1:].view(q.shape)
    assert torch.equal(fused(case, misaligned, k, v, None, None), expected)
    shared = fused(case, q, k[:1].expand(2, -1, -1, -1), v, None, None)
    assert torch.equal(shared[0], expected[0])


def test_vmap_folds_a_population_into_the_batch():
    case = Case(4, 32, 9, 9)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(3, 2, 9, 4, 32, generator=generator).to(torch.bfloat16) for _ in "qkv")

    def one(q, k, v):
        return fused(case, q, k, v, None, None)

    alone = torch.stack([one(*x) for x in zip(q, k, v, strict=True)])
    assert torch.equal(torch.func.vmap(one)(q, k, v), alone)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(dynamic):
    case = Case(8, 64, 20, 40)
    inputs, _, upstream = draw(case)
    torch.compiler.reset()
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    want = with_gradients(fused, case, inputs, None, upstream, torch.bfloat16)
    got = with_gradients(compiled, case, inputs, None, upstream, torch.bfloat16)
    torch.testing.assert_close(got, want)


def test_shared_memory_is_what_the_kernel_counts(monkeypatch):
    # The host build compares on every launch; here every pass of the cases above must have one.
    builds = HostBuilds(kept_builds())
    monkeypatch.setattr(large_head, "load_kernel", builds.load_kernel)
    test_output_and_gradients(CASES[1])
    names = {dict(macros).get("PASS") for *_, macros in builds.kernels}
    assert {0, 1, 2} <= names


def test_a_missing_barrier_is_noticed(tmp_path, monkeypatch):
    def without_barrier(*names):
        before, after = read_sources(*names).split("DEVICE void value_gradients")
        return before + "DEVICE void value_gradients" + after.replace("__syncthreads();", "", 1)

    monkeypatch.setattr(large_head, "read_sources", without_barrier)
    monkeypatch.setattr(large_head, "load_kernel", HostBuilds(tmp_path).load_kernel)
    with pytest.raises(AssertionError, match="dq"):
        # A full tile of queries, whose last ones the last threads own: in ascending order all goes
        # well. Keys of two blocks: the second runs its threads in descending order.
        test_output_and_gradients(Case(3, 32, 32, 18, dtype=torch.float32))


@pytest.mark.parametrize(
    "barrier",
    [
        " meet();\n    sum[0]",  # squares
        "    meet();\n}\n\n// From the code to ds",  # codes
        "    meet();\n    float ds",  # their gradients
    ],
)
def test_a_missing_barrier_of_a_cluster_is_noticed(barrier, tmp_path, monkeypatch):
    def alone(*names):
        sources = read_sources(*names)
        if "large_head_backward.cu" not in names:
            return sources
        assert sources.count(barrier) == 1
        return sources.replace(barrier, barrier.replace("meet", "__syncthreads"))

    monkeypatch.setattr(large_head, "read_sources", alone)
    monkeypatch.setattr(large_head, "load_kernel", HostBuilds(tmp_path).load_kernel)
    with pytest.raises(AssertionError, match=r"d[qkv]"):
        test_output_and_gradients(Case(16, 128, 18, 18))


def test_wide_rows_are_split_and_too_many_heads_take_plain_arithmetic():
    def plans(heads, width, dtype=torch.bfloat16, value="hidden"):
        q = torch.zeros(1, 4, heads, width, dtype=dtype)
        return [large_head.choose_plan(name, q, value) for name in ("forward", "query", "key")]

    splits = {(16, 64): [1, 1, 1], (32, 64): [1, 2, 2], (9, 65): [1, 2, 2], (32, 128): [4, 4, 4]}
    for (heads, width), split in splits.items():
        chosen = plans(heads, width)
        assert all(isinstance(plan, TensorCorePlan) for plan in chosen)
        assert [plan.split for plan in chosen] == split
    for wide in (plans(33, 64), plans(64, 32), plans(8, 64, torch.float32)):
        assert all(isinstance(plan, PlainPlan) for plan in wide)
    assert all(isinstance(plan, LinearPlan) for plan in plans(16, 64, value="linear"))
    for wide in (plans(32, 128, value="linear"), plans(33, 64, value="linear")):
        assert all(isinstance(plan, PlainPlan) for plan in wide)


@pytest.mark.parametrize("compiled", [False, True])
def test_auto_leaves_what_no_gpu_has_measured(compiled, monkeypatch):
    measured = [{"kernel": "large_head", "dtype": "bfloat16", "T": 9, "H": 8, "D": 32}]
    measured[0] |= {"fused_ms": 1, "reference_ms": 2}
    monkeypatch.setattr(choice, "_table", lambda: measured)
    case = Case(8, 32, 9, 9)
    (q, k, v, _), _, _ = draw(case)

    def attend(if_faster, q, k, v):
        options = {"spec": case.spec, "scale": SCALE, "eps": EPS, "causal": False}
        path = choose_path(q, k, v, if_faster=if_faster, **options)
        return torch.full((), float("nan")) if isinstance(path, str) else path.attend()

    torch.compiler.reset()
    if compiled:
        attend = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert attend(True, q, k, v).isfinite().all()
    assert attend(True, *(x.float() for x in (q, k, v))).isnan()
    assert attend(False, *(x.float() for x in (q, k, v))).isfinite().all()


@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        *[
            (Case(8, 64, 9, 9, normalisation=name, dtype=dtype), f"large_head{kind}")
            for name, dtype, kind in (
                ("softmax", torch.float32, "_plain_softmax"),
                ("softmax+rms_head", torch.float32, "_plain_softmax"),
                ("rms_head+softmax", torch.float32, "_plain_softmax"),
                ("rms_head+softmax", torch.bfloat16, "_softmax"),
            )
        ],
        (Case(8, 64, 9, 9, normalisation="softmax", multipliers=1), "large_head_plain_dropout"),
        (Case(8, 64, 9, 9, multipliers=1), "large_head_plain_dropout"),
    ],
    ids=str,
)
def test_auto_takes_what_was_timed_and_was_faster(case, kernel, monkeypatch):
    (q, k, v, _), _, _ = draw(case)
    call = Call(q, k, v, formula=case.formula, multiplier=multiplier_of(case))
    assert choose_kernel(call) == (kernel, "")

    def of_others_and(*own):
        entry = {"dtype": "bfloat16", "T": 9, "H": 8, "D": 64, "fused_ms": 1, "reference_ms": 2}
        table = [entry | {"kernel": name} for name in KERNELS if name != kernel]
        monkeypatch.setattr(choice, "_table", lambda: table + [entry | x for x in own])
        choice._is_faster_nearby.cache_clear()
        return choose_kernel(call, if_faster=True)

    assert "was not measured" in of_others_and()[1]
    assert of_others_and({"kernel": kernel}) == (kernel, "")
    assert "to be slower" in of_others_and({"kernel": kernel, "reference_ms": 0.5})[1]
    choice._is_faster_nearby.cache_clear()


def test_auto_takes_what_was_measured_on_such_gpus_only(monkeypatch):
    q = torch.zeros(1, 1024, 8, 64)  # float32, without tensor cores
    assert choice.why_not_worth_it("large_head_plain", q, q) is None
    monkeypatch.setattr(choice, "capability", lambda device: (8, 6))
    reason = choice.why_not_worth_it("large_head_plain", q, q)
    assert reason is not None
    assert "not measured on such a GPU" in reason
    assert choice.why_not_worth_it("small_head", q, q) is None


def test_large_shapes_that_do_not_fit_say_so():
    formula = Case(64, 128, 4, 4).formula
    for heads, fits in ((64, False), (32, True)):
        q = torch.zeros(1, 4, heads, 128, dtype=torch.bfloat16, requires_grad=True)
        reason = large_head.why_unsupported(Call(q, q, q, formula=formula))
        assert (reason is None) == fits
    with pytest.raises(ValueError, match="64 heads of D = 128 do not fit"):
        fused_attention("large_head", Call(*[torch.zeros(1, 4, 64, 128)] * 3, formula=formula))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("up to 64 heads", {"q": torch.zeros(1, 4, 65, 32, dtype=torch.bfloat16)}),
        ("bfloat16, float16 or float32", {"q": torch.zeros(1, 4, 8, 32).double()}),
        ("'sigmoid'", {"formula": replace(Case(8, 32, 4, 4).formula, normalisation="sigmoid")}),
        ("'deep'", {"formula": replace(Case(8, 32, 4, 4).formula, value="deep")}),
    ],
)
def test_says_why_it_cannot_run(message, change):
    q = change.get("q", torch.zeros(1, 4, 8, 32, dtype=torch.bfloat16))
    formula = change.get("formula", Case(8, 32, 4, 4).formula)
    with pytest.raises(ValueError, match=message):
        fused_attention("large_head", Call(q, q, q, formula=formula))


@pytest.mark.parametrize("kernel", ["large_head", "decode"])
@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("must divide the batch", {"bias": torch.zeros(3, 8, 1, 4)}),
        (r"\[Bb, H, Tq, Tk\]", {"bias": torch.zeros(2, 8, 4, 4)}),
        ("boolean", {"padding": torch.ones(2, 5) > 0}),
        ("with the batch, heads", {"q": torch.zeros(4, 1, 8, 32)}),
    ],
)
def test_shapes_that_do_not_fit_each_other_are_refused(kernel, message, change):
    given = {"q": torch.zeros(2, 1, 8, 32), **dict.fromkeys("kv", torch.zeros(2, 4, 8, 32))}
    call = Call(**given | change, formula=Case(8, 32, 1, 4).formula)
    with pytest.raises(ValueError, match=message):
        fused_attention(kernel, call)


def test_packed_sequences_take_neither_bias_nor_padding_nor_multiplier():
    q = torch.zeros(1, 4, 8, 32)
    starts = torch.tensor([0, 1, 4], dtype=torch.int32)
    options = {"packing": Packing(starts, starts, 3, 3), "formula": Case(8, 32, 4, 4).formula}
    for more in ({"bias": torch.zeros(1, 8, 4, 4)}, {"padding": torch.ones(1, 4) > 0}):
        with pytest.raises(ValueError, match="neither bias nor padding"):
            fused_attention("large_head", Call(q, q, q, **more, **options))
    with pytest.raises(ValueError, match="no code multiplier"):
        fused_attention("large_head", Call(q, q, q, multiplier=torch.ones(1, 4, 4), **options))


DECODE = [
    Case(8, 64, 1, 200, B=2, dtype=torch.float32),
    Case(12, 80, 1, 70, B=2, biases=1, padding=True),
    Case(3, 8, 1, 5, B=2, biases=2, dtype=torch.float16),
    Case(16, 128, 1, 65, padding=True, normalisation="none", dtype=torch.float32),
    # Every φ with and without RMSHead; more blocks for a sequence than keys; lanes with nothing.
    *(
        Case(8, 64, 1, 40, B=2, phi=phi, normalisation=normalisation)
        for phi in ("identity", "relu", "gelu_tanh", "gelu")
        for normalisation in ("none", "rms_head")
    ),
    Case(5, 24, 1, 300, padding=True, dtype=torch.float32),
    Case(1, 128, 1, 33, normalisation="none", dtype=torch.float16),
    # Rows that leave no room for the next keys, and the widest there are.
    Case(16, 64, 1, 50, B=20),
    Case(64, 64, 1, 40, padding=True),
    Case(32, 128, 1, 37, biases=1, dtype=torch.float32),
]
UNIT = {torch.float32: 2**-20, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def test_decoding_from_an_odd_address():
    case = DECODE[0]
    (q, k, v, _), _, _ = draw(case)
    odd = torch.cat([k.flatten()[:1], k.flatten()])[1:].view(k.shape)
    expected, got = (
        fused_attention("decode", Call(q, keys, v, formula=case.formula)) for keys in (k, odd)
    )
    assert torch.equal(got, expected)


@pytest.mark.parametrize("case", DECODE, ids=str)
def test_decoding(case):
    (q, k, v, bias), padding, _ = draw(case)
    double = [None if x is None else x.double() for x in (q, k, v, bias)]
    want = exact(case, *double, padding=padding)
    if padding is not None:  # what is padded may hold anything
        k, v = (x.masked_fill(~padding[:, :, None, None], float("nan")) for x in (k, v))
    options = {"bias": bias, "padding": padding, "formula": case.formula}
    options |= {"multiplier": None, "packing": None}
    assert choose_kernel(Call(q, k, v, **options)) == ("decode", "")
    got = fused_attention("decode", Call(q, k, v, bias=bias, padding=padding, formula=case.formula))
    assert relative_error(got, want) < UNIT[case.dtype]


@pytest.mark.parametrize("case", [case for case in DECODE if case.biases], ids=str)
def test_a_bias_of_minus_infinity_masks_the_pair_in_decoding(case):
    (q, k, v, bias), padding, _ = draw(case)
    bias = bias.masked_fill(some_of(bias), -torch.inf)
    want = exact(case, *(x.double() for x in (q, k, v, bias)), padding=padding)
    got = fused_attention("decode", Call(q, k, v, bias=bias, padding=padding, formula=case.formula))
    assert relative_error(got, want) < UNIT[case.dtype]


def test_decoding_has_no_gradient():
    q, k = (torch.zeros(1, T, 8, 32, requires_grad=True) for T in (1, 3))
    formula = Case(8, 32, 1, 3).formula
    with pytest.raises(ValueError, match="no gradient"):
        fused_attention("decode", Call(q, k, k, formula=formula))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax", {"bias": torch.ones(8, 9, 12)}),  # which PyTorch's kernels are not asked for
        ("hyla_residual_minus_rmshead_plus_softmax.silu", {"bias": torch.ones(8, 9, 12)}),
        ("hyla_residual.silu", {"code_multiplier": torch.linspace(0, 2, 108).view(9, 12)}),
        ("softmax", {"code_multiplier": torch.linspace(0, 2, 108).view(9, 12)}),
    ],
)
def test_biases_and_dropout_of_any_softmax_reach_a_kernel(name, options):
    case = Case(8, 32, 9, 12, dtype=torch.float32)
    (q, k, v, _), _, upstream = draw(case)

    def run(backend, dtype):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (q, k, v)]
        output = attention(*leaves, attention=name, backend=backend, **options)
        return output, *torch.autograd.grad(output, leaves, upstream.to(dtype))

    want = run("reference", torch.float64)
    for ours, truth in zip(run("fused", torch.float32), want, strict=True):
        assert relative_error(ours, truth) < 2**-19


@pytest.mark.parametrize("queries", [9, 1])  # a single one decodes
def test_a_bias_by_distance_is_spread_for_the_kernel(queries):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, queries, 4, 32, generator=generator)
    k, v = (torch.randn(2, 17, 4, 32, generator=generator) for _ in "kv")
    table = torch.randn(1, queries + 16, generator=generator, requires_grad=queries > 1)

    def run(backend):
        output = attention(q, k, v, bias=DistanceBias(table), backend=backend)
        if not table.requires_grad:
            return (output,)
        return output, *torch.autograd.grad(output.square().sum(), table)

    torch.testing.assert_close(run("fused"), run("reference"), rtol=1e-2, atol=1e-2)

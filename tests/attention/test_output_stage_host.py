"""What becomes of a query's output in the kernels, without a GPU: their sources built for the CPU.

The truth is the reference in float64, its output scaled by a few lines of torch.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hyla.attention import AttentionSpec, attention
from hyla.attention.kernels import decode, large_head, small_head
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.choice import choose_kernel
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.kernels.packing import Packing
from hyla.attention.kernels.plans.small import Plan
from hyla.attention.reference import reference_attention
from kernel_host import needs_host_build, on_the_host

pytestmark = needs_host_build

SCALE, EPS, GAIN = 0.5, 1e-6, 1.7
UNIT = {torch.float32: 2**-19, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(autouse=True)
def host(builds, monkeypatch):
    on_the_host(monkeypatch, builds, small_head, large_head, decode)


@dataclass(frozen=True)
class Case:
    kernel: str
    output: str
    H: int
    D: int
    Tq: int
    Tk: int
    B: int = 2
    gain: float = GAIN
    factors: int = 1  # rows of factors, for "rows"
    biases: int = 0
    causal: bool = False
    padding: bool = False
    value: str = "hidden"
    phi: str = "silu"  # smooth: rounding decides nothing
    deterministic: bool = False
    dtype: torch.dtype = torch.float32
    plan: Plan | None = None

    def __str__(self):
        flags = [n for n in ("causal", "padding", "deterministic") if getattr(self, n)]
        size = f"H{self.H}D{self.D}Tq{self.Tq}Tk{self.Tk}B{self.B}"
        return "-".join([self.kernel, self.output, size, self.value, *flags, str(self.dtype)[6:]])

    @property
    def formula(self):
        member = {"normalisation": "rms_head", "value": self.value, "phi": self.phi}
        stage = {"output": self.output, "gain": self.gain}
        return Formula(**member, **stage, scale=SCALE, eps=EPS, causal=self.causal)


TEAM = Plan(lanes=4, rows=2, threads=64)
UNEVEN = Plan(lanes=2, rows=4, threads=64)
ALONE = Plan(lanes=1, rows=1, threads=64)
FP16, BF16 = torch.float16, torch.bfloat16
SMALL = [
    Case("small_head", "plain", 16, 4, 9, 11, biases=1, causal=True, plan=TEAM),
    Case("small_head", "plain", 3, 3, 5, 6, value="linear", padding=True, plan=UNEVEN),
    Case("small_head", "rows", 16, 4, 9, 9, biases=2, factors=2, plan=TEAM),
    Case("small_head", "rows", 3, 3, 7, 5, B=4, factors=2, causal=True, plan=UNEVEN),
    Case("small_head", "rms", 16, 4, 9, 11, biases=1, padding=True, plan=TEAM),
    Case("small_head", "rms", 3, 3, 7, 5, causal=True, padding=True, plan=UNEVEN),
    Case("small_head", "rms", 5, 16, 3, 4, biases=2, deterministic=True, plan=ALONE),
    Case("small_head", "rms", 8, 2, 9, 9, value="linear", causal=True, plan=TEAM),
    Case("small_head", "rms", 8, 4, 9, 9, gain=1.0, dtype=BF16, plan=TEAM),
    Case("small_head", "rows", 8, 4, 9, 9, value="linear", dtype=BF16, plan=TEAM),
]
LARGE = [
    Case("large_head", "plain", 8, 64, 20, 24, causal=True, dtype=BF16),
    Case("large_head", "plain", 3, 32, 9, 18, biases=1, deterministic=True, dtype=FP16),
    Case("large_head", "rows", 8, 32, 33, 33, B=4, factors=2, causal=True, dtype=BF16),
    Case("large_head", "rms", 8, 64, 33, 33, causal=True, dtype=BF16),
    Case("large_head", "rms", 12, 80, 9, 18, biases=2, padding=True, dtype=BF16),
    Case("large_head", "rms", 5, 24, 17, 9, padding=True, deterministic=True, dtype=FP16),
    Case("large_head", "rms", 24, 32, 10, 20, B=1, dtype=BF16),
    Case("large_head", "rms", 32, 128, 34, 20, B=1, causal=True, dtype=BF16),
    Case("large_head", "rms", 32, 64, 9, 11, B=1, dtype=FP16),
    Case("large_head", "rows", 16, 128, 17, 33, factors=2, padding=True, dtype=BF16),
    Case("large_head", "plain", 20, 64, 18, 18, deterministic=True, dtype=BF16),
    # In plain arithmetic.
    Case("large_head", "plain", 8, 64, 20, 40, biases=1, causal=True),
    Case("large_head", "plain", 3, 20, 9, 18, deterministic=True),
    Case("large_head", "rows", 12, 80, 17, 36, factors=2, padding=True),
    Case("large_head", "rms", 8, 64, 40, 20, causal=True, padding=True),
    Case("large_head", "rms", 3, 20, 9, 18, biases=2, deterministic=True),
    Case("large_head", "rms", 40, 64, 3, 5, B=1, dtype=BF16),
    Case("large_head", "rms", 64, 32, 9, 11, B=1, dtype=FP16),
    # Linear value networks.
    Case("large_head", "rms", 8, 64, 33, 33, value="linear", causal=True, dtype=BF16),
    Case("large_head", "rms", 5, 24, 17, 9, value="linear", deterministic=True, dtype=FP16),
    Case("large_head", "rows", 12, 32, 9, 18, value="linear", factors=2, dtype=BF16),
    Case("large_head", "plain", 8, 32, 20, 24, value="linear", biases=1, dtype=BF16),
    Case("large_head", "rms", 8, 64, 20, 40, value="linear", causal=True),
]
DECODE = [
    Case("decode", "plain", 8, 64, 1, 200),
    Case("decode", "rows", 12, 80, 1, 70, biases=1, padding=True, factors=2, dtype=BF16),
    Case("decode", "rms", 8, 64, 1, 600, padding=True),
    Case("decode", "rms", 3, 8, 1, 5, biases=2, dtype=FP16),
    Case("decode", "rms", 32, 128, 1, 65, B=1, dtype=BF16),
]


def draw(case) -> tuple[tuple[Any, ...], Any, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(case.dtype)

    q, upstream = (normal(case.B, case.Tq, case.H, case.D) for _ in "qg")
    k, v = (normal(case.B, case.Tk, case.H, case.D) for _ in "kv")
    bias = normal(case.biases, case.H, case.Tq, case.Tk) if case.biases else None
    padding = torch.rand(case.B, case.Tk, generator=generator) > 0.3 if case.padding else None
    return (q, k, v, bias), padding, upstream


def row_factor_of(case) -> Any:
    if case.output != "rows":
        return None
    count = torch.arange(case.factors * case.Tq, dtype=torch.float32)
    return 1.3 + count.sin().view(case.factors, case.Tq)


def exact_stage(o, formula, row_factor):
    if formula.output == "rows":
        rows = row_factor.to(o.dtype).repeat_interleave(len(o) // len(row_factor), dim=0)
        o = o * rows[:, :, None, None]
    if formula.output == "rms":
        o = o * (o.square().mean((2, 3), keepdim=True) + formula.output_eps).rsqrt()
    return formula.gain * o


def exact(case, q, k, v, bias=None, padding=None):
    mask = torch.ones(1, 1, case.Tq, case.Tk, dtype=torch.bool)
    if case.causal:
        mask = mask.tril(case.Tk - case.Tq)
    if padding is not None:
        mask = mask & padding[:, None, None]
    if bias is not None:
        bias = bias.repeat_interleave(case.B // case.biases, dim=0)
    spec = AttentionSpec(normalisation="rms_head", value=case.value, phi=case.phi)
    options = {"spec": spec, "scale": SCALE, "eps": EPS, "bias": bias, "mask": mask}
    return exact_stage(
        reference_attention(q, k, v, **options)[0], case.formula, row_factor_of(case)
    )


def fused(case, q, k, v, bias=None, padding=None):
    options = {"bias": bias, "padding": padding, "deterministic": case.deterministic}
    options |= {"row_factor": row_factor_of(case), "formula": case.formula}
    return fused_attention(case.kernel, Call(q, k, v, **options))


def with_gradients(function, case, inputs, padding, upstream, dtype):
    leaves = [None if x is None else x.detach().to(dtype).requires_grad_() for x in inputs]
    output = function(case, *leaves, padding)
    output.backward(upstream.to(dtype))
    return [output.detach(), *(x.grad for x in leaves if x is not None)]


def relative_error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def use_plan(case, monkeypatch):
    if case.plan is not None:
        monkeypatch.setattr(small_head, "choose_plan", lambda pass_name, own: case.plan)


@pytest.mark.parametrize("case", [*SMALL, *LARGE], ids=str)
def test_output_and_gradients(case, monkeypatch):
    use_plan(case, monkeypatch)
    inputs, padding, upstream = draw(case)
    want = with_gradients(exact, case, inputs, padding, upstream, torch.float64)
    got = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    for name, ours, truth in zip(("output", "dq", "dk", "dv", "dbias"), got, want, strict=False):
        assert relative_error(ours, truth) < 3 * UNIT[case.dtype], name


@pytest.mark.parametrize("case", DECODE, ids=str)
def test_decoding(case):
    (q, k, v, bias), padding, _ = draw(case)
    double = [None if x is None else x.double() for x in (q, k, v, bias)]
    got, want = fused(case, q, k, v, bias, padding), exact(case, *double, padding=padding)
    assert got.shape == want.shape
    assert got.dtype == case.dtype
    assert relative_error(got, want) < UNIT[case.dtype]


@pytest.mark.parametrize("case", [SMALL[8], LARGE[12], DECODE[4]], ids=str)
def test_a_scaled_output_is_rounded_once(case, monkeypatch):
    use_plan(case, monkeypatch)
    (q, k, v, bias), padding, _ = draw(case)
    raw = replace(case, output="plain", gain=1.0)
    once = fused(case, q, k, v, bias, padding).double()
    twice = exact_stage(fused(raw, q, k, v, bias, padding).double(), case.formula, None).to(BF16)
    double = [None if x is None else x.double() for x in (q, k, v, bias)]
    want = exact(case, *double, padding=padding)
    assert relative_error(once, want) < 0.85 * relative_error(twice, want)


@pytest.mark.parametrize(
    ("kernel", "D", "dtype"),
    [
        *(("small_head", 4, dtype) for dtype in (torch.float32, BF16)),
        *(("large_head", 32, dtype) for dtype in (torch.float32, BF16, FP16)),
    ],
)
def test_queries_that_see_no_key(kernel, D, dtype):
    case = Case(kernel, "rms", 8, D, 9, 5, causal=True, padding=True, dtype=dtype)
    inputs, padding, upstream = draw(case)
    padding[0] = False  # and the first queries of the other see none, by causality
    results = with_gradients(fused, case, inputs, padding, 1000 * upstream, dtype)
    assert all(x.isfinite().all() for x in results)
    output, dq, dk, dv = results
    assert not output[0].any()
    assert not output[1, :4].any()
    assert not dq[0].any()
    assert not dq[1, :4].any()
    assert not dk[0].any()
    assert not dv[0].any()
    assert output[1, 4:].any()
    assert dq[1, 4:].any()


@pytest.mark.parametrize("output", ["plain", "rows", "rms"])
def test_a_gain_of_zero(output, monkeypatch):
    case = replace(SMALL[0], output=output, gain=0.0)
    use_plan(case, monkeypatch)
    inputs, padding, upstream = draw(case)
    results = with_gradients(fused, case, inputs, padding, upstream, torch.float32)
    assert not any(x.any() for x in results)


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("output", ["plain", "rows", "rms"])
def test_packed_sequences(output, dtype):
    case = Case("large_head", output, 8, 24, 37, 37, B=1, causal=True, dtype=dtype)
    (q, k, v, _), _, upstream = draw(case)
    starts = torch.tensor([0, 5, 5, 22, 37], dtype=torch.int32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    options = {"packing": Packing(starts, starts, 17, 17), "row_factor": row_factor_of(case)}
    together = fused_attention("large_head", Call(*leaves, **options, formula=case.formula))
    gradients = torch.autograd.grad(together, leaves, upstream)
    for a, b in ((0, 5), (5, 22), (22, 37)):
        alone = [x[:, a:b].detach().requires_grad_() for x in leaves]
        rows = None if output != "rows" else row_factor_of(case)[:, a:b]
        one = fused_attention("large_head", Call(*alone, row_factor=rows, formula=case.formula))
        torch.testing.assert_close(together[:, a:b], one)
        parts = torch.autograd.grad(one, alone, upstream[:, a:b])
        for whole, part in zip(gradients, parts, strict=True):
            torch.testing.assert_close(whole[:, a:b], part)


def test_upstream_gradients_of_any_layout(monkeypatch):
    case = Case("small_head", "rms", 3, 3, 7, 5, plan=UNEVEN)
    use_plan(case, monkeypatch)
    inputs, _, upstream = draw(case)
    expected = with_gradients(fused, case, inputs, None, upstream, torch.float32)
    strided = upstream.transpose(1, 2).contiguous().transpose(1, 2)
    misaligned = torch.cat([upstream.flatten()[:1], upstream.flatten()])[1:].view(upstream.shape)
    for same in (strided, misaligned):
        got = with_gradients(fused, case, inputs, None, same, torch.float32)
        torch.testing.assert_close(got, expected)
    leaves = [x.requires_grad_() for x in inputs[:3]]
    torch.autograd.grad(fused(case, *leaves).sum(), leaves)  # an expanded scalar


@pytest.mark.parametrize(
    ("output", "mapped", "factors"),
    [("rms", False, 1), *(("rows", mapped, n) for mapped in (False, True) for n in (1, 4))],
)
def test_a_population_whose_members_have_factors_of_their_own(output, mapped, factors, monkeypatch):
    case = Case("small_head", output, 8, 4, 5, 5, B=4, plan=TEAM)
    use_plan(case, monkeypatch)
    generator = torch.Generator().manual_seed(2)
    leaves = [torch.randn(3, 4, 5, 8, 4, generator=generator).requires_grad_() for _ in "qkv"]
    rows = torch.rand(factors, 5, 3, generator=generator) if mapped else torch.rand(factors, 5)
    rows, row_dim = (None, None) if output == "rms" else (rows, 2 if mapped else None)

    def one(row_factor, q, k, v):
        options = {"row_factor": row_factor, "formula": case.formula}
        return fused_attention("small_head", Call(q, k, v, **options))

    stacked = torch.func.vmap(one, in_dims=(row_dim, 0, 0, 0))(rows, *leaves)
    alone = torch.stack(
        [one(rows[..., i] if mapped else rows, *(x[i] for x in leaves)) for i in range(3)]
    )
    torch.testing.assert_close(stacked, alone)
    weight = torch.randn(alone.shape, generator=generator)
    expected = torch.autograd.grad((alone * weight).sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad((stacked * weight).sum(), leaves), expected)

    def loss(row_factor, weight, q, k, v):
        return (one(row_factor, q, k, v) * weight).sum()

    gradient = torch.func.vmap(
        torch.func.grad(loss, argnums=(2, 3, 4)), in_dims=(row_dim, 0, 0, 0, 0)
    )
    torch.testing.assert_close(gradient(rows, weight, *leaves), expected)
    first = torch.func.grad(loss, argnums=2)(
        rows[..., 0] if mapped else rows, weight[0], *(x[0] for x in leaves)
    )
    torch.testing.assert_close(first, expected[0][0])


@pytest.mark.parametrize("output", ["plain", "rows", "rms"])
def test_torch_accepts_the_operator(output, monkeypatch):
    case = Case("small_head", output, 8, 4, 5, 5, plan=TEAM)
    use_plan(case, monkeypatch)
    (q, k, v, _), _, _ = draw(case)
    given = (*(x.requires_grad_() for x in (q, k, v)), None, None, None, row_factor_of(case))
    options = ("small_head", "rms_head", "hidden", "silu", SCALE, EPS, False, output, GAIN, EPS)
    operator = torch.ops.hyla.fused_attention.default
    torch.library.opcheck(operator, (*given, *[None] * 4, 0, 0, *options, True, False))


@pytest.mark.parametrize("case", [SMALL[3], SMALL[5], LARGE[2], LARGE[3]], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(case, dynamic, monkeypatch):
    use_plan(case, monkeypatch)
    inputs, padding, upstream = draw(case)
    torch.compiler.reset()
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    want = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    got = with_gradients(compiled, case, inputs, padding, upstream, case.dtype)
    torch.testing.assert_close(got, want)


def test_autocast_leaves_the_factors_alone(monkeypatch):
    case = replace(SMALL[2], biases=0)
    use_plan(case, monkeypatch)
    inputs, _, _ = draw(case)
    leaves = [x.requires_grad_() for x in inputs[:3]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = fused(case, *leaves)
    output.float().sum().backward()
    assert output.dtype == torch.bfloat16
    assert leaves[0].grad.dtype == torch.float32
    want = exact(case, *(x.detach().double() for x in leaves))
    assert relative_error(output.detach(), want) < 2**-7


def test_checkpointed_layers(monkeypatch):
    case = SMALL[5]
    use_plan(case, monkeypatch)
    inputs, padding, upstream = draw(case)

    def checkpointed(case, *given):
        return checkpoint(fused, case, *given, use_reentrant=False)

    want = with_gradients(fused, case, inputs, padding, upstream, torch.float32)
    got = with_gradients(checkpointed, case, inputs, padding, upstream, torch.float32)
    torch.testing.assert_close(got, want)


def test_no_rows_at_all():
    for case in (replace(SMALL[5], B=0), replace(SMALL[3], B=0, Tq=0), replace(DECODE[2], B=0)):
        (q, k, v, _), _, _ = draw(case)
        assert fused(case, q, k, v, None, None).shape == q.shape


@pytest.mark.parametrize(
    ("message", "row_factor", "output"),
    [
        ("belong to the output stage 'rows'", None, "rows"),
        ("belong to the output stage 'rows'", torch.ones(1, 3), "rms"),
        ("must be one of", None, "softmax"),
        (r"float32 \[Bf, Tq\]", torch.ones(3), "rows"),
        (r"float32 \[Bf, Tq\]", torch.ones(1, 4), "rows"),
        (r"float32 \[Bf, Tq\]", torch.ones(1, 3).double(), "rows"),
        ("must divide the batch", torch.ones(3, 3), "rows"),
        ("no gradient", torch.ones(1, 3, requires_grad=True), "rows"),
    ],
)
def test_says_why_it_cannot_run(message, row_factor, output):
    q = torch.zeros(4, 3, 8, 4)
    formula = Case("small_head", output, 8, 4, 3, 3).formula
    with pytest.raises(ValueError, match=message):
        fused_attention("small_head", Call(q, q, q, row_factor=row_factor, formula=formula))
    kernel, reason = choose_kernel(Call(q, q, q, row_factor=row_factor, formula=formula))
    assert kernel is None
    assert re.search(message, reason)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("output", ["plain", "expected", "rms"])
@pytest.mark.parametrize(
    ("normalisation", "value", "H", "D"),
    [
        *[("rms_head", "hidden", 8, 4), ("rms_head", "hidden", 8, 32), ("none", "residual", 3, 4)],
        *[("rms_head", "activated", 8, 32), ("rms_head", "pooled", 8, 32)],
        ("rms_head", "residual", 8, 32),
    ],
)
def test_dispatch_knows_the_members(normalisation, value, H, D, output, causal, padded):
    q, k, v = (torch.randn(2, 5, H, D) for _ in "qkv")
    spec = AttentionSpec(normalisation=normalisation, value=value, output=output, gain=GAIN)
    mask = torch.rand(2, 1, 1, 5) > 0.4 if padded else None
    options = {"attention": spec, "mask": mask, "causal": causal}
    got = attention(q, k, v, backend="fused", **options)
    want = attention(q, k, v, backend="reference", **options)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", [{"output": "rms"}, {"output": "expected"}, {"gain": 2.0}])
@pytest.mark.parametrize("normalisation", ["softmax", "none"])
def test_members_without_a_kernel_are_scaled_too(normalisation, stage):
    q = torch.randn(1, 5, 2, 64)
    spec = AttentionSpec(normalisation=normalisation, value="linear", **stage)
    options = {"attention": spec, "causal": True}
    want = attention(q, q, q, backend="reference", **options)
    torch.testing.assert_close(attention(q, q, q, backend="fused", **options), want)


@pytest.mark.parametrize("queries", [5, 1], ids=["forward", "decoding"])
@pytest.mark.parametrize(
    ("D", "dtype"), [(4, torch.float32), (32, torch.float32), (32, torch.bfloat16)]
)
def test_scores_beyond_all_bounds_give_no_number_rather_than_0(D, dtype, queries):
    q, k, v = (torch.randn(1, tokens, 8, D, dtype=dtype) for tokens in (queries, 5, 5))
    for name in ("hyla", "hyla.rms4"):
        out = attention(q, k, v, attention=name, scale=1e25, backend="fused")
        assert out.isnan().all()

"""A softmax code in the large-head kernels, without a GPU: their sources built for the CPU.

The rows' sums and the rest of the gradients come from PyTorch's flash attention, here its CPU one,
unless RMSHead comes before the softmax.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hyla.attention import AttentionSpec, attention
from hyla.attention.kernels import large_head, softmax_rows
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.choice import choose_kernel
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.kernels.packing import Packing
from hyla.attention.phi import PHIS
from kernel_host import needs_host_build, on_the_host

pytestmark = needs_host_build

SCALE, EPS = 0.2, 1e-6
BF16, FP16 = torch.bfloat16, torch.float16
UNIT = {BF16: 2**-8, FP16: 2**-11}
# Of q and k: two large parts of their gradients cancel, each rounded by itself.
UNITS = {"output": 2, "dq": 4, "dk": 4, "dv": 2}
AFTER, BEFORE = "softmax+rms_head", "rms_head+softmax"
every_order = pytest.mark.parametrize("order", ["softmax", AFTER, BEFORE])
RESIDUAL = "hyla_residual_minus_rmshead_plus_softmax"


@pytest.fixture(autouse=True)
def host(builds, monkeypatch):
    on_the_host(monkeypatch, builds, large_head)


@dataclass(frozen=True)
class Case:
    H: int
    D: int
    Tq: int
    Tk: int
    B: int = 1
    causal: bool = False
    phi: str = "silu"  # smooth: rounding decides nothing
    output: str = "plain"
    gain: float = 1.0
    deterministic: bool = False
    dtype: torch.dtype = BF16
    size: float = 1.0  # of q and k
    order: str = "softmax"  # and where RMSHead is
    padding: bool = False

    def __str__(self):
        names = ("causal", "deterministic", "padding")
        flags = [name for name in names if getattr(self, name)]
        shape = f"H{self.H}D{self.D}Tq{self.Tq}Tk{self.Tk}B{self.B}x{self.size}"
        return "-".join([self.order, shape, self.phi, self.output, *flags, str(self.dtype)[6:]])

    @property
    def steps(self):
        return tuple(self.order.split("+"))

    @property
    def spec(self):
        stage = {"output": self.output, "gain": self.gain}
        return AttentionSpec(normalisation=self.steps, value="hidden", phi=self.phi, **stage)

    @property
    def formula(self):
        member = {"normalisation": self.order, "value": "hidden", "phi": self.phi}
        stage = {"output": self.output, "gain": self.gain}
        return Formula(**member, **stage, scale=SCALE, eps=EPS, causal=self.causal)


CASES = [
    Case(8, 64, 17, 17, causal=True),
    Case(32, 64, 33, 33, causal=True),
    Case(12, 128, 9, 18, deterministic=True, output="rms"),
    Case(8, 64, 33, 33, causal=True, deterministic=True, phi="relu"),
    Case(8, 64, 33, 33, B=2, causal=True, output="rms", gain=0.25),
    Case(8, 32, 20, 40, deterministic=True, output="rms"),
    Case(4, 32, 33, 17, B=2, gain=1.7, phi="relu"),
    Case(4, 64, 17, 17, B=3, causal=True, dtype=FP16),
    Case(4, 32, 33, 33, causal=True, phi="relu", dtype=FP16, deterministic=True),
    Case(3, 24, 17, 5, dtype=FP16, output="rms"),
    Case(12, 32, 18, 18, causal=True),
    Case(1, 48, 9, 9, causal=True),
    Case(8, 64, 1, 20, causal=True),
    # RMSHead after the softmax; heads that do not exist must not count.
    Case(8, 64, 17, 17, causal=True, order=AFTER),
    Case(8, 64, 33, 33, B=2, causal=True, order=AFTER, deterministic=True),
    Case(8, 32, 20, 40, order=AFTER, output="rms", gain=0.25),
    Case(3, 24, 17, 5, order=AFTER, dtype=FP16),
    Case(12, 32, 18, 18, order=AFTER, causal=True),
    Case(20, 32, 18, 18, order=AFTER, causal=True),
    Case(4, 64, 17, 17, B=3, order=AFTER, causal=True, dtype=FP16, deterministic=True),
    # And where a cluster of blocks shares the heads.
    Case(32, 64, 33, 33, order=AFTER, causal=True),
    Case(12, 128, 9, 18, order=AFTER, deterministic=True, output="rms"),
    Case(20, 128, 18, 18, order=AFTER, causal=True, dtype=FP16),
    # RMSHead before the softmax, whose rows passes of their own sum: any masks of keys and lengths.
    Case(8, 64, 17, 17, causal=True, order=BEFORE),
    Case(8, 64, 70, 70, B=2, causal=True, order=BEFORE, deterministic=True, phi="relu"),
    Case(8, 32, 20, 40, B=2, causal=True, order=BEFORE, padding=True, output="rms", gain=0.25),
    Case(3, 24, 17, 5, order=BEFORE, dtype=FP16, gain=1.7),
    Case(12, 32, 18, 18, order=BEFORE, causal=True, deterministic=True),
    Case(20, 32, 18, 33, order=BEFORE, padding=True),
    Case(4, 64, 17, 17, B=3, order=BEFORE, causal=True, dtype=FP16, deterministic=True),
    Case(8, 64, 1, 20, causal=True, order=BEFORE),
    Case(32, 64, 33, 33, order=BEFORE, causal=True),
    Case(12, 128, 9, 18, order=BEFORE, deterministic=True, padding=True, output="rms"),
    Case(20, 128, 18, 18, order=BEFORE, causal=True, dtype=FP16),
]


def draw(case):
    generator = torch.Generator().manual_seed(0)

    def normal(tokens, size):
        return (size * torch.randn(case.B, tokens, case.H, case.D, generator=generator)).to(
            case.dtype
        )

    q, k = normal(case.Tq, case.size), normal(case.Tk, case.size)
    return (q, k, normal(case.Tk, 1)), normal(case.Tq, 1)


def keys_of(case):
    if not case.padding:
        return None
    return torch.rand(case.B, case.Tk, generator=torch.Generator().manual_seed(1)) > 0.3


def exact(case, q, k, v):
    options = {"causal": case.causal, "scale": SCALE, "eps": EPS, "backend": "reference"}
    if case.padding:
        options["mask"] = keys_of(case)[:, None, None]
    return attention(q, k, v, attention=case.spec, **options)


def einsums(case, q, k, v):
    """Compute in the dtype of q throughout: what one would write without a kernel."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q * SCALE, k)
    code = scores
    for step in case.steps:
        if step == "rms_head":
            mean = code.float().square().mean(1, keepdim=True)
            code = code * (mean + EPS).rsqrt().to(code.dtype)
        elif case.causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(case.Tk - case.Tq)
            code = torch.softmax(code.masked_fill(~seen, -torch.inf), -1)
    hidden = PHIS[case.phi](torch.einsum("bhqk,bkhd->bqkd", code, v))
    return torch.einsum("bhqk,bqkd->bqhd", code, hidden)


def fused(case, q, k, v):
    options = {"formula": case.formula, "deterministic": case.deterministic}
    call = Call(q, k, v, padding=keys_of(case), **options)
    assert "plain" not in large_head.name_by_speed(call)
    return fused_attention("large_head", call)


def with_gradients(function, case, inputs, upstream, dtype):
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    output = function(case, *leaves)
    output.backward(upstream.to(dtype))
    return dict(zip(UNITS, [output.detach(), *(x.grad for x in leaves)], strict=True))


def relative_error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case):
    inputs, upstream = draw(case)
    want = with_gradients(exact, case, inputs, upstream, torch.float64)
    got = with_gradients(fused, case, inputs, upstream, case.dtype)
    unit = UNIT[case.dtype] * (2 if case.phi == "relu" else 1)  # at its kink, rounding decides
    for name, units in UNITS.items():
        assert relative_error(got[name], want[name]) < units * unit, name
        assert got[name].is_contiguous()


@pytest.mark.parametrize(
    ("phi", "dtype", "size"),
    # Scores with a deviation of 14: a few keys take all.
    [("relu", BF16, 1), ("silu", BF16, 1), ("relu", FP16, 1), ("silu", BF16, 3), ("silu", FP16, 3)],
)
@every_order
def test_as_good_as_einsums_of_the_same_dtype(phi, dtype, size, order):
    case = Case(8, 64, 65, 65, causal=True, phi=phi, dtype=dtype, size=size, order=order)
    inputs, upstream = draw(case)
    want = with_gradients(exact, case, inputs, upstream, torch.float64)
    plain = with_gradients(einsums, case, inputs, upstream, dtype)
    got = with_gradients(fused, case, inputs, upstream, dtype)
    for name, truth in want.items():
        allowed = 2 * relative_error(plain[name], truth)
        assert relative_error(got[name], truth) < allowed, name


@every_order
def test_a_score_in_common_changes_nothing(order):
    """A softmax does not see what is added to all keys; the gradients' two parts must cancel."""
    case = Case(8, 64, 33, 33, causal=True, order=order)
    (q, k, v), upstream = draw(case)
    inputs = (q, (k + 2 * k[:, :1]).to(BF16), v)
    want = with_gradients(exact, case, inputs, upstream, torch.float64)
    got = with_gradients(fused, case, inputs, upstream, BF16)
    for name, units in UNITS.items():
        assert relative_error(got[name], want[name]) < 2 * units * UNIT[BF16], name


@pytest.mark.parametrize("output", ["rms4", "plain"])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_beside_the_linear_value_network(output, dtype):
    case = Case(4, 32, 33, 33, B=2, dtype=dtype)
    inputs, upstream = draw(case)

    def run(backend):
        def attend(case, q, k, v):
            options = {"causal": True, "scale": SCALE, "eps": EPS, "backend": backend}
            return attention(q, k, v, attention=f"{RESIDUAL}.silu.{output}", **options)

        return attend

    want = with_gradients(run("reference"), case, inputs, upstream, torch.float64)
    got = with_gradients(run("fused"), case, inputs, upstream, dtype)
    for name, units in UNITS.items():
        assert relative_error(got[name], want[name]) < units * UNIT[dtype], name


def test_factors_given_for_each_query():
    case = Case(8, 32, 17, 17, B=2, causal=True)
    (q, k, v), _ = draw(case)
    factor = torch.linspace(0.5, 2, 17)[None]
    formula = Formula(**{**vars(case.formula), "output": "rows"})
    got = fused_attention("large_head", Call(q, k, v, row_factor=factor, formula=formula))
    want = exact(case, *(x.double() for x in (q, k, v))) * factor[..., None, None]
    assert relative_error(got, want) < 2 * UNIT[BF16]


@every_order
def test_a_fixed_order_gives_the_same_gradients(order):
    case = Case(8, 32, 33, 33, causal=True, order=order)
    inputs, upstream = draw(case)
    any_order = with_gradients(fused, case, inputs, upstream, BF16)
    case = Case(8, 32, 33, 33, causal=True, order=order, deterministic=True)
    fixed = with_gradients(fused, case, inputs, upstream, BF16)
    for name, x in any_order.items():
        assert relative_error(fixed[name], x.double()) < UNITS[name] * UNIT[BF16]


@every_order
def test_a_scale_of_zero_has_no_gradient(order):
    case = Case(8, 32, 9, 9, order=order)
    inputs, upstream = draw(case)
    leaves = [x.requires_grad_() for x in inputs]
    formula = Formula(**{**vars(case.formula), "scale": 0.0})
    output = fused_attention("large_head", Call(*leaves, formula=formula))
    dq, dk, dv = torch.autograd.grad(output, leaves, upstream)
    assert all((x == 0).all() for x in (dq, dk))
    assert dv.isfinite().all()


@every_order
def test_no_batch_and_no_keys(order):
    for batch, keys in ((0, 5), (2, 0)):
        case = Case(8, 32, 5, keys, B=batch, order=order)
        inputs, upstream = draw(case)
        got = with_gradients(fused, case, inputs, upstream, BF16)
        assert all((got[name] == 0).all() for name in ("output", "dq"))


def test_strided_inputs():
    case = Case(8, 32, 18, 18, causal=True)
    inputs, upstream = draw(case)
    want = with_gradients(fused, case, inputs, upstream, BF16)
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    got = with_gradients(fused, case, heads_first, upstream, BF16)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("order", ["softmax", BEFORE])
def test_vmap_of_gradients(order):
    case = Case(4, 32, 9, 9, B=2, causal=True, order=order)
    generator = torch.Generator().manual_seed(2)
    models = [torch.randn(3, 2, 9, 4, 32, generator=generator).to(BF16) for _ in "qkv"]

    def loss(q, k, v):
        return fused(case, q, k, v).float().square().sum()

    together = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*models)
    for i, mine in enumerate(zip(*together, strict=True)):
        leaves = [x[i].clone().requires_grad_() for x in models]
        alone = torch.autograd.grad(loss(*leaves), leaves)
        torch.testing.assert_close(mine, alone)


@pytest.mark.parametrize("order", ["softmax", BEFORE])
def test_compiles_as_one_graph(order):
    case = Case(8, 64, 20, 20, causal=True, order=order)
    inputs, upstream = draw(case)
    torch.compiler.reset()
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    want = with_gradients(fused, case, inputs, upstream, BF16)
    got = with_gradients(compiled, case, inputs, upstream, BF16)
    torch.testing.assert_close(got, want)


def test_the_logarithms_of_the_sums():
    case = Case(4, 32, 17, 17, B=2, causal=True, dtype=FP16)
    (q, k, _), _ = draw(case)
    scores = torch.einsum("bqhd,bkhd->bqhk", q.double() * SCALE, k.double())
    seen = torch.ones(17, 17, dtype=torch.bool).tril()[None, :, None]
    want = scores.masked_fill(~seen, -torch.inf).logsumexp(-1)
    got = softmax_rows.log_sums(q, k, causal=True, scale=SCALE)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-3)


def test_a_row_of_one_key_has_no_gradient():
    case = Case(8, 32, 9, 1, order=BEFORE)
    inputs, upstream = draw(case)
    got = with_gradients(fused, case, inputs, upstream, BF16)
    assert all((got[name] == 0).all() for name in ("dq", "dk"))


STARTS = torch.tensor([0, 4], dtype=torch.int32)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": torch.zeros(1, 8, 4, 4)},
        {"padding": torch.ones(1, 4) > 0},
        {"packing": Packing(STARTS, STARTS, 4, 4)},
        {"q": torch.zeros(1, 3, 8, 32, dtype=BF16)},  # the last of four, causal
        dict.fromkeys("qkv", torch.zeros(1, 4, 8, 32)),
        dict.fromkeys("qkv", torch.zeros(1, 4, 40, 64, dtype=BF16)),
        dict.fromkeys("qkv", torch.zeros(1, 4, 8, 32, dtype=BF16).expand(65536, -1, -1, -1)),
    ],
)
def test_what_flash_attention_does_not_know_is_summed_in_plain_arithmetic(change):
    given: dict[str, Any] = dict.fromkeys("qkv", torch.zeros(1, 4, 8, 32, dtype=BF16))
    formula = Case(8, 32, 4, 4, causal=True).formula
    assert choose_kernel(Call(**given, formula=formula)) == ("large_head", "")
    changed = Call(**given | change, formula=formula)
    assert choose_kernel(changed) == ("large_head_plain_softmax", "")
    # RMSHead before it bounds the rows: its passes on tensor cores know masks of keys, and no bias.
    bounded = Call(**given | change, formula=Case(8, 32, 4, 4, causal=True, order=BEFORE).formula)
    fits = "bias" not in change and bounded.q.dtype == BF16 and bounded.q.shape[2] == 8
    kernel = "large_head_softmax" if fits else "large_head_plain_softmax"
    assert choose_kernel(bounded) == (kernel, "")

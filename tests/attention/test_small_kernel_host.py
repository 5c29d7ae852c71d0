"""The small-head kernel without a GPU: its source built for the CPU by `kernel_host`.

Everything but the compiler is the code that runs on the GPU: the kernel's arithmetic, its
exchanges between lanes, the Python that lays out and launches it, and the torch operator.
"""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_kernel_cases import (
    EPS,
    SCALE,
    Case,
    assert_as_good_as_torch,
    draw,
    fused,
    use_plan,
    with_gradients,
)
from torch.autograd import forward_ad

from hyla.attention import attention
from hyla.attention.kernels import small_head
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.nn import MultiHeadAttention
from kernel_host import needs_host_build, on_the_host

pytestmark = needs_host_build


@pytest.fixture(autouse=True)
def host(builds, monkeypatch):
    on_the_host(monkeypatch, builds, small_head)


SOFTMAX_RMS, RMS_SOFTMAX = "softmax+rms_head", "rms_head+softmax"
BOTH_ORDERS = (SOFTMAX_RMS, RMS_SOFTMAX)
RESIDUAL: dict[str, Any] = {"value": "residual", "phi": "silu"}
CASES = [
    # One lane holds all heads: the arithmetic alone.
    Case(1, 2, 1, 1),
    Case(3, 3, 2, 2, phi="gelu"),
    Case(8, 2, 15, 15, rows=4, biases=1, phi="gelu_tanh"),
    Case(8, 2, 17, 15, rows=4, biases=1, B=65, phi="identity", normalisation="none"),
    Case(12, 4, 5, 17, phi="silu", causal=True),
    Case(16, 4, 36, 36, rows=2),
    Case(16, 8, 3, 2, causal=True, normalisation="none", phi="gelu"),
    Case(3, 16, 4, 5, padding=True, value="linear"),
    # Heads spread over a team of lanes, evenly and not.
    Case(16, 4, 36, 36, lanes=4, rows=4, biases=1, B=9),
    Case(16, 4, 17, 17, lanes=4, rows=2, biases=2, B=18, deterministic=True),
    Case(16, 4, 15, 15, lanes=4, rows=2, biases=3, B=3, padding=True, causal=True),
    Case(16, 4, 17, 36, lanes=8, rows=2, causal=True, biases=1, B=4, prefetch=True),
    Case(12, 4, 17, 5, lanes=4, rows=4, padding=True, biases=1, B=10, phi="gelu_tanh"),
    Case(12, 3, 7, 9, lanes=8, rows=2, biases=1, B=5, normalisation="none", phi="silu"),
    Case(3, 3, 15, 2, lanes=2, rows=4, biases=1, B=17, deterministic=True),
    Case(64, 4, 5, 6, lanes=16, rows=4, biases=1, B=3, padding=True),
    Case(64, 4, 5, 5, lanes=32, rows=1, biases=1, B=3, causal=True, phi="gelu"),
    Case(16, 16, 3, 4, lanes=16, rows=1, phi="silu"),
    Case(16, 16, 6, 4, lanes=2, rows=2, prefetch=True, padding=True),
    Case(8, 2, 9, 9, lanes=2, rows=4, value="linear", biases=1, B=20, causal=True),
    Case(8, 8, 5, 9, lanes=4, rows=2, value="linear", normalisation="none", biases=1, B=9),
    Case(8, 8, 5, 9, lanes=4, rows=4, value="linear", normalisation="none", padding=True),
    Case(1, 16, 15, 17, rows=2, biases=2, B=2, value="linear"),
    # A multiplier of the code, shared like a bias and not.
    Case(8, 2, 9, 9, rows=4, multipliers=1, phi="gelu"),
    Case(16, 4, 17, 15, lanes=4, rows=2, biases=1, B=6, multipliers=3, causal=True),
    Case(12, 4, 5, 9, lanes=4, rows=2, B=4, multipliers=4, padding=True, phi="silu"),
    Case(8, 4, 6, 5, lanes=2, rows=2, multipliers=2, normalisation="none"),
    Case(8, 2, 9, 9, lanes=2, rows=4, value="linear", biases=2, B=4, multipliers=1),
    Case(8, 2, 6, 7, value="linear", normalisation="none", multipliers=1, prefetch=True),
    # A softmax over the keys: two walks, and statistics of each query and head.
    Case(1, 2, 1, 1, normalisation="softmax"),
    Case(16, 4, 36, 36, lanes=4, rows=4, biases=1, B=9, normalisation="softmax"),
    Case(8, 2, 9, 9, rows=4, biases=1, B=20, causal=True, normalisation="softmax", value="linear"),
    Case(12, 3, 7, 9, lanes=8, rows=2, biases=1, B=5, normalisation="softmax", phi="silu"),
    Case(3, 3, 15, 2, lanes=2, rows=4, causal=True, normalisation="softmax", deterministic=True),
    Case(3, 3, 5, 17, lanes=2, rows=4, biases=1, B=17, normalisation="softmax", padding=True),
    Case(16, 4, 17, 15, lanes=4, rows=2, biases=2, B=18, normalisation="softmax", phi="gelu"),
    Case(16, 16, 6, 4, lanes=2, rows=2, prefetch=True, padding=True, normalisation="softmax"),
    Case(12, 4, 17, 5, lanes=4, rows=4, B=4, multipliers=2, normalisation="softmax", phi="silu"),
    Case(8, 2, 9, 7, rows=2, biases=2, B=4, multipliers=1, normalisation="softmax", value="linear"),
    Case(16, 4, 15, 15, lanes=8, rows=2, biases=3, B=3, causal=True, normalisation="softmax"),
    # RMSHead after the softmax and before it.
    *(
        replace(case, normalisation=name)
        for name in BOTH_ORDERS
        for case in (
            Case(1, 2, 1, 1),
            Case(16, 4, 36, 36, lanes=4, rows=4, biases=1, B=9),
            Case(8, 2, 9, 9, rows=4, biases=1, B=20, causal=True, value="linear"),
            Case(12, 3, 7, 9, lanes=8, rows=2, biases=1, B=5, phi="silu"),
            Case(3, 3, 5, 17, lanes=2, rows=4, biases=1, B=17, padding=True, deterministic=True),
            Case(16, 16, 6, 4, lanes=2, rows=2, prefetch=True, padding=True),
            Case(12, 4, 17, 5, lanes=4, rows=4, B=4, multipliers=2, phi="gelu"),
            Case(8, 2, 9, 7, rows=2, biases=2, B=4, multipliers=1, value="linear"),
            Case(16, 4, 15, 15, lanes=8, rows=2, biases=3, B=3, causal=True),
            Case(16, 4, 17, 15, lanes=4, rows=4, biases=1, B=9, **RESIDUAL),
            Case(3, 3, 5, 9, lanes=2, rows=2, biases=1, causal=True, **RESIDUAL),
            Case(8, 2, 9, 7, rows=2, biases=2, B=4, multipliers=1, **RESIDUAL),
            Case(16, 4, 9, 7, lanes=4, rows=2, biases=1, dtype=torch.bfloat16),
        )
    ),
    # Residual value networks: hidden and linear at once.
    Case(1, 2, 1, 1, value="residual"),
    Case(16, 4, 17, 15, lanes=4, rows=4, biases=1, B=9, value="residual"),
    Case(3, 3, 7, 9, lanes=2, rows=2, causal=True, value="residual", phi="gelu"),
    Case(12, 4, 5, 9, lanes=4, rows=2, B=4, multipliers=4, padding=True, value="residual"),
    Case(8, 4, 6, 5, lanes=2, rows=2, biases=2, multipliers=2, normalisation="none", **RESIDUAL),
    Case(16, 4, 17, 36, lanes=8, rows=2, biases=1, B=4, normalisation="none", **RESIDUAL),
    Case(16, 4, 17, 15, lanes=4, rows=4, biases=1, B=9, normalisation="softmax", **RESIDUAL),
    Case(3, 3, 5, 9, lanes=2, rows=2, biases=1, causal=True, normalisation="softmax", **RESIDUAL),
    Case(8, 2, 9, 7, rows=4, padding=True, prefetch=True, normalisation="softmax", **RESIDUAL),
    Case(8, 2, 9, 7, rows=2, biases=2, B=4, multipliers=1, normalisation="softmax", **RESIDUAL),
    # bfloat16 in and out, float32 inside.
    Case(16, 4, 17, 17, lanes=4, rows=2, biases=1, B=9, dtype=torch.bfloat16),
    Case(3, 3, 5, 6, lanes=2, causal=True, dtype=torch.bfloat16),
    Case(8, 2, 6, 7, rows=4, padding=True, phi="silu", prefetch=True, dtype=torch.bfloat16),
    Case(8, 2, 6, 7, rows=4, multipliers=2, phi="silu", dtype=torch.bfloat16),
    Case(16, 4, 9, 7, lanes=4, rows=2, biases=1, normalisation="softmax", dtype=torch.bfloat16),
    Case(16, 4, 9, 7, lanes=4, rows=2, biases=1, **RESIDUAL, dtype=torch.bfloat16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_match_the_reference(case, monkeypatch):
    use_plan(monkeypatch, case)
    assert_as_good_as_torch(case, *draw(case))


PLAIN = Case(8, 4, 5, 5, lanes=2, rows=2, B=4, biases=1)
SOFTMAX = replace(PLAIN, normalisation="softmax")
either = pytest.mark.parametrize("case", [PLAIN, SOFTMAX], ids=["plain", "softmax"])
each = pytest.mark.parametrize(
    "case",
    [PLAIN, SOFTMAX, *(replace(PLAIN, normalisation=name) for name in BOTH_ORDERS)],
    ids=lambda case: case.normalisation,
)


def test_layouts_of_the_inputs_do_not_matter(monkeypatch):
    use_plan(monkeypatch, PLAIN)
    (q, k, v, bias), _, _ = draw(PLAIN)
    expected = fused(PLAIN, q, k, v, bias, None)
    sliced = torch.stack([q, k, v], dim=2).unbind(2)  # token stride of three rows
    assert torch.equal(fused(PLAIN, *sliced, bias=bias), expected)
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(fused(PLAIN, *heads_first, bias=bias), expected)
    storage = torch.zeros(q.numel() + 1)
    misaligned = storage[1:].view(q.shape).copy_(q)
    assert torch.equal(fused(PLAIN, misaligned, k, v, bias, None), expected)
    same = k[:1].expand_as(k)
    repeated = fused(PLAIN, q, same.contiguous(), v, bias, None)
    assert torch.equal(fused(PLAIN, q, same, v, bias, None), repeated)


@each
def test_padded_tokens_do_not_matter_even_if_they_are_nan(case, monkeypatch):
    case = replace(case, B=2, biases=0, padding=True)
    use_plan(monkeypatch, case)
    (q, k, v, _), padding, upstream = draw(case)
    padding[0] = False
    clean = with_gradients(fused, case, (q, k, v, None), padding, upstream, torch.float32)
    k, v = (x.masked_fill(~padding[:, :, None, None], float("nan")) for x in (k, v))
    dirty = with_gradients(fused, case, (q, k, v, None), padding, upstream, torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(clean, dirty, strict=True))
    assert not clean[0][0].any()
    assert not dirty[2][~padding].any()


MEMBERS = [
    {"normalisation": normalisation, "value": value, "phi": "silu"}
    for normalisation in ("rms_head", "none", "softmax", *BOTH_ORDERS)
    for value in ("hidden", "linear", "residual")
]
MASKING = Case(8, 4, 7, 9, lanes=2, rows=2, B=4, biases=2)


@pytest.mark.parametrize(
    "case",
    [
        *(replace(MASKING, **member) for member in MEMBERS),
        *(replace(MASKING, normalisation=name, multipliers=2) for name in ("none", "softmax")),
        replace(MASKING, causal=True, padding=True, dtype=torch.bfloat16),
        replace(MASKING, H=12, D=3, lanes=8, B=5, biases=1, prefetch=True),
        replace(MASKING, H=16, lanes=4, rows=4, B=9, biases=1, deterministic=True),
        replace(MASKING, H=16, lanes=4, rows=4, B=9, biases=1, value="linear"),
    ],
    ids=str,
)
def test_a_bias_of_minus_infinity_masks_the_pair(case, monkeypatch):
    use_plan(monkeypatch, case)
    (q, k, v, bias), padding, upstream = draw(case)
    masked = torch.rand(bias.shape, generator=torch.Generator().manual_seed(2)) > 0.6
    masked[:, :, 2] = True  # a query that sees no key
    inputs = (q, k, v, bias.masked_fill(masked, -torch.inf))
    assert_as_good_as_torch(case, inputs, padding, upstream)
    output, dq, *_, dbias = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    assert not output[:, 2].any()
    assert not dq[:, 2].any()
    assert not dbias[masked].any()


@pytest.mark.parametrize("biases", [0, 1])
@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: "-".join(member.values()))
def test_not_even_a_nan_comes_from_a_later_token(member, biases, monkeypatch):
    case = Case(8, 4, 9, 9, lanes=2, rows=4, causal=True, biases=biases, **member)
    use_plan(monkeypatch, case)
    (q, k, v, bias), _, _ = draw(case)
    want = fused(case, q, k, v, bias, None)[:, :6]
    for bad in (torch.nan, torch.inf):
        hole = torch.zeros(9, 1, 1)
        hole[6] = bad
        for to_k, to_v in ((hole, hole), (hole, 0), (0, hole)):
            output = fused(case, q, k + to_k, v + to_v, bias, None)
            assert torch.equal(output[:, :6], want)
            assert bad == torch.inf or output[:, 6:].isnan().all()  # who sees it is told


@pytest.mark.parametrize("value", ["hidden", "linear", "residual"])
@pytest.mark.parametrize(
    ("normalisation", "dtype"),
    [
        *itertools.product(["softmax"], [torch.float32, torch.bfloat16]),
        *itertools.product(BOTH_ORDERS, [torch.float32]),
    ],
)
def test_softmax_of_queries_that_see_no_key(value, normalisation, dtype, monkeypatch):
    case = Case(8, 4, 7, 5, lanes=2, rows=2, B=3, causal=True, padding=True, biases=1)
    case = replace(case, normalisation=normalisation, value=value, dtype=dtype)
    use_plan(monkeypatch, case)
    inputs, padding, upstream = draw(case)
    padding[0], padding[1:] = False, True  # and the first two queries see none, by causality
    ours = with_gradients(fused, case, inputs, padding, upstream, dtype)
    assert all(x.isfinite().all() for x in ours)
    for without in (ours[0][0], ours[0][:, :2], ours[1][0], ours[1][:, :2], ours[2][0], ours[3][0]):
        assert not without.any()
    assert_as_good_as_torch(case, inputs, padding, upstream)


@pytest.mark.parametrize("value", ["hidden", "residual"])
def test_relu_hides_no_nan(value, monkeypatch):
    case = replace(PLAIN, biases=0, normalisation="none", value=value, phi="relu")
    use_plan(monkeypatch, case)
    (q, k, v, _), _, upstream = draw(case)
    v[0, 2] = torch.nan  # all queries of the first see it
    results = with_gradients(fused, case, (q, k, v, None), None, upstream, torch.float32)
    output, dq, dk, dv = results
    assert all(x.isnan().all() for x in (output[0], dq[0], dk[0, 2]))
    assert all(x[1:].isfinite().all() for x in (output, dq, dk, dv))


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_softmax_of_scores_of_any_size(scale, monkeypatch):
    use_plan(monkeypatch, SOFTMAX)
    (q, k, v, bias), _, upstream = draw(SOFTMAX)
    bias[:, :, :, 0] = -torch.inf  # out, as some masks are written
    bias[:, :, :, 1:] += 500
    # The logarithm of a sum is rounded once more, here at up to 4,000.
    inputs = (scale * q, scale * k, v, bias)
    assert_as_good_as_torch(SOFTMAX, inputs, None, upstream, floor=4096 * 2**-23)


@either
@pytest.mark.parametrize(("B", "Tq", "Tk"), [(0, 3, 3), (2, 0, 3), (2, 3, 0)])
def test_empty_axes(case, B, Tq, Tk, monkeypatch):
    case = replace(case, Tq=Tq, Tk=Tk, B=B, biases=0)
    use_plan(monkeypatch, case)
    inputs, _, upstream = draw(case)
    for result in with_gradients(fused, case, inputs, None, upstream, torch.float32):
        assert not result.any()


def stacked_population(case, members):
    draws = [draw(case, seed)[0] for seed in range(members)]
    return [torch.stack(x).requires_grad_() for x in zip(*draws, strict=True)]


@either
def test_vmap_folds_a_population_into_the_batch(case, monkeypatch):
    use_plan(monkeypatch, case)
    leaves = stacked_population(case, 3)

    def one(q, k, v, bias):
        return fused(case, q, k, v, bias, None)

    stacked = torch.func.vmap(one)(*leaves)
    alone = torch.stack([one(*(x[i] for x in leaves)) for i in range(3)])
    torch.testing.assert_close(stacked, alone)
    weight = torch.randn_like(stacked)
    expected = torch.autograd.grad((alone * weight).sum(), leaves)
    got = torch.autograd.grad((stacked * weight).sum(), leaves)
    torch.testing.assert_close(got, expected)

    def loss(weight, q, k, v, bias):
        return (one(q, k, v, bias) * weight).sum()

    per_member = torch.func.vmap(torch.func.grad(loss, argnums=(1, 2, 3, 4)))(weight, *leaves)
    torch.testing.assert_close(per_member, expected)


@pytest.mark.parametrize("biases", [1, 2])
def test_vmap_with_what_is_common_to_all_members(biases, monkeypatch):
    case = Case(8, 4, 5, 5, lanes=2, rows=2, B=4, biases=biases, padding=True)
    use_plan(monkeypatch, case)
    q, k, v, _ = stacked_population(case, 3)
    (*_, bias), padding, _ = draw(case)
    bias.requires_grad_()

    def one(q, bias):
        return fused(case, q, k[0], v[0], bias, padding)

    stacked = torch.func.vmap(one, in_dims=(0, None), out_dims=1)(q, bias)
    alone = torch.stack([one(x, bias) for x in q], dim=1)
    torch.testing.assert_close(stacked, alone)
    expected = torch.autograd.grad(alone.square().sum(), (q, bias))
    torch.testing.assert_close(torch.autograd.grad(stacked.square().sum(), (q, bias)), expected)

    def loss(bias, q):
        return one(q, bias).square().sum()

    per_member = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(bias, q)
    torch.testing.assert_close(per_member.sum(0), expected[1])


@either
def test_torch_accepts_the_operator(case, monkeypatch):
    use_plan(monkeypatch, case)
    (q, k, v, bias), _, _ = draw(case)
    tensors = [x.requires_grad_() for x in (q, k, v, bias)]
    unused = (None,) * 5 + (0, 0)  # row factor, pages and packing
    stage = ("plain", 1.0, 1e-6)
    member = ("small_head", case.normalisation, "hidden", "relu")
    options = (*member, SCALE, EPS, False, *stage, True, False)
    operator = torch.ops.hyla.fused_attention.default
    torch.library.opcheck(operator, (*tensors, None, None, *unused, *options))
    multiplied = (None, torch.rand(2, 5, 5))  # no padding, but factors of the codes
    torch.library.opcheck(operator, (*tensors, *multiplied, *unused, *options))


@either
def test_compiles_as_one_graph(case, monkeypatch):
    use_plan(monkeypatch, case)
    inputs, _, upstream = draw(case)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(case, *inputs).dtype == torch.bfloat16
    expected = with_gradients(fused, case, inputs, None, upstream, torch.float32)
    got = with_gradients(compiled, case, inputs, None, upstream, torch.float32)
    torch.testing.assert_close(got, expected)


def test_autocast_gradients_come_back_in_the_dtype_of_the_leaves(monkeypatch):
    use_plan(monkeypatch, PLAIN)
    (q, k, v, bias), _, _ = draw(PLAIN)
    for x in (q, bias):
        x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = fused(PLAIN, q, k, v, bias, None)
    output.float().square().sum().backward()
    assert output.dtype == torch.bfloat16
    assert q.grad.dtype == bias.grad.dtype == torch.float32


def test_dropout_of_a_layer_runs_in_the_kernel():
    layer = MultiHeadAttention(12, 3, dropout=0.5, backend="fused")
    plain = MultiHeadAttention(12, 3, dropout=0.5, backend="reference")
    plain.load_state_dict(layer.state_dict())
    # A population: weights in common here, but data and what is dropped of each member's own.
    x, noise = torch.randn(3, 2, 5, 12), torch.rand(3, 5, 5)

    def together(one):
        output = torch.func.vmap(lambda x, noise: one(x, dropout_noise=noise))(x, noise)
        loss = output.square().mean()
        return output, *torch.autograd.grad(loss, list(one.parameters()))

    torch.testing.assert_close(together(layer), together(plain), rtol=1e-3, atol=1e-4)
    alone = torch.stack([plain(x[i], dropout_noise=noise[i]) for i in range(3)])
    torch.testing.assert_close(together(layer)[0], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in jvp
def test_multipliers_that_are_constants_and_that_are_not():
    q, k, v = (torch.randn(3, 2, 5, 8, 4) for _ in "qkv")
    multiplier = torch.rand(5, 5)

    def attend(q, k, v, multiplier, backend):
        return attention(q, k, v, code_multiplier=multiplier, backend=backend)

    def gradient(backend, in_dims=(0, 0, 0, None)):
        def loss(q, k, v, multiplier):
            return attend(q, k, v, multiplier, backend).square().sum()

        return torch.func.vmap(torch.func.grad(loss), in_dims=in_dims)(q, k, v, multiplier)

    torch.testing.assert_close(gradient("fused"), gradient("reference"), rtol=1e-3, atol=1e-3)

    one = (q[0], k[0], v[0])
    differentiated = [
        lambda: attend(*one, multiplier.clone().requires_grad_(), "fused"),
        lambda: torch.func.vmap(lambda m: attend(*one, m, "fused"))(
            torch.rand(3, 5, 5, requires_grad=True)
        ),
        lambda: torch.func.grad(lambda m: attend(*one, m, "fused").sum())(multiplier),
    ]
    for call in differentiated:
        with pytest.raises(ValueError, match="the code multiplier has no gradient"):
            call()
    with forward_ad.dual_level(), pytest.raises(ValueError, match="no forward-mode derivative"):
        attend(*one, forward_ad.make_dual(multiplier, multiplier), "fused")


SOFTMAX_RESIDUAL = "hyla_residual_minus_rmshead_plus_softmax"


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("softmax", "softmax.rms4", "softmax.plain2", "hyla_minus_rmshead_plus_softmax"),
        *("hyla_residual", "hyla_residual_minus_rmshead", "hyla_residual.plain2.silu"),
        *(SOFTMAX_RESIDUAL, f"{SOFTMAX_RESIDUAL}.rms4", f"{SOFTMAX_RESIDUAL}.expected2"),
        *("hyla_plus_softmax", "hyla_plus_softmax.expected2", "hyla_plus_softmax_last"),
    ],
)
def test_presets_at_the_shape_of_sraven(name, dropout):
    generator = torch.Generator().manual_seed(0)
    q, k, v, weight = (torch.randn(3, 36, 16, 4, generator=generator) for _ in "qkvw")
    bias = torch.randn(16, 36, 36, generator=generator)
    multiplier = (torch.rand(36, 36, generator=generator) > 0.1) / 0.9 if dropout else None
    leaves = [x.requires_grad_() for x in (q, k, v, bias)]

    def run(backend):
        options = {"bias": bias, "code_multiplier": multiplier, "backend": backend}
        output = attention(q, k, v, attention=name, bias_masks=False, **options)
        return output, *torch.autograd.grad((output * weight).sum(), leaves)

    torch.testing.assert_close(run("fused"), run("reference"), rtol=1e-4, atol=1e-4)


def formula(**changes):
    member = {"normalisation": "rms_head", "value": "hidden", "phi": "relu"}
    return Formula(**{"scale": 1.0, "eps": 1e-6, "causal": False, **member, **changes})


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("float32 or all bfloat16", {"q": torch.zeros(2, 3, 4, 2, dtype=torch.float16)}),
        ("head sizes up to 16", {n: torch.zeros(2, 3, 4, 17) for n in "qkv"}),
        ("with the batch, heads", {"k": torch.zeros(2, 3, 5, 2)}),
        ("must divide the batch", {"bias": torch.zeros(3, 4, 3, 3)}),
        (r"\[Bb, H, Tq, Tk\] or", {"bias": torch.zeros(4, 3, 3)}),
        ("boolean", {"padding": torch.ones(2, 3)}),
        (r"\[Bm, Tq, Tk\]", {"multiplier": torch.ones(2, 4, 3, 3)}),
        ("must divide the batch", {"multiplier": torch.ones(3, 3, 3)}),
        ("no gradient", {"multiplier": torch.ones(1, 3, 3, requires_grad=True)}),
        ("deep", {"formula": formula(value="deep")}),
        ("tanh", {"formula": formula(phi="tanh")}),
    ],
)
def test_says_why_it_cannot_run(message, arguments):
    given = {**{name: torch.zeros(2, 3, 4, 2) for name in "qkv"}, "formula": formula(), **arguments}
    with pytest.raises(ValueError, match=message):
        fused_attention("small_head", Call(**given))


def test_no_batch_at_all():
    q = torch.zeros(0, 3, 4, 2, requires_grad=True)
    for shape in ((0, 4, 3, 3), (1, 4, 3, 3), (1, 4, 5)):
        bias = torch.zeros(shape, requires_grad=True)
        output = fused_attention("small_head", Call(q, q, q, formula=formula(), bias=bias))
        output.sum().backward()
        assert output.shape == q.shape
        assert bias.grad.equal(torch.zeros_like(bias))


def test_cpu_tensors_are_refused_without_the_host_build(monkeypatch):
    monkeypatch.setattr(small_head, "DEVICES", ("cuda",))
    with pytest.raises(ValueError, match="on one CUDA device, got cpu"):
        fused_attention(
            "small_head", Call(*(torch.zeros(2, 3, 4, 2) for _ in "qkv"), formula=formula())
        )


def test_plans_fit_the_machine():
    for H in (1, 3, 8, 12, 16, 64, 100):
        for D in (1, 2, 3, 4, 8, 16):
            for B, T in ((1, 1), (128, 36), (1536, 36)):
                for pass_name in ("forward", "query", "key"):
                    own = torch.zeros(1, 1, 1, 1).expand(B, T, H, D)
                    plan = small_head.choose_plan(pass_name, own)
                    assert plan.lanes in (1, 2, 4, 8, 16, 32)
                    assert plan.lanes <= H
                    assert plan.rows in (1, 2, 4)

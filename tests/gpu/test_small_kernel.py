"""The small-head kernel on a GPU: every size, every member, every plan, against the reference."""

import itertools

import pytest
import torch
from kernel_checks import (
    HYLA,
    assert_as_good_as_torch,
    captured,
    check_bias_of_minus_infinity,
    check_nan_in_a_later_token,
    fused,
    normal,
    with_gradients,
)

from hyla.attention import attention
from hyla.attention.kernels import small_head
from hyla.attention.kernels.formula import PHIS
from hyla.attention.kernels.plans.small import Plan

pytestmark = pytest.mark.gpu

BOTH_ORDERS = ["softmax+rms_head", "rms_head+softmax"]
SIZES = [(1, 4), (3, 2), (8, 2), (12, 8), (16, 4), (16, 16), (64, 4), (64, 8)]


def member_of(H, phi):
    """HYLA; but one head normalises to its sign, and what its gradients are then is rounding."""
    return HYLA | {"phi": phi} | ({"normalisation": "none"} if H == 1 else {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("H", "D"), SIZES, ids=[f"H{H}D{D}" for H, D in SIZES])
def test_every_length_matches_the_reference(H, D, dtype):
    torch.manual_seed(0)
    for T in (1, 2, 15, 16, 17, 36, 63, 96, 127):
        q, k, v = (normal(4, T, H, D, dtype=dtype) for _ in "qkv")
        options = {"causal": T % 2 == 0, **member_of(H, "relu")}
        assert_as_good_as_torch((q, k, v, normal(2, H, T, T)), **options)


@pytest.mark.parametrize(
    ("normalisation", "value", "phi"),
    [
        *itertools.product(["rms_head"], ["hidden"], PHIS),
        ("none", "hidden", "gelu"),
        ("rms_head", "linear", "relu"),
        ("none", "linear", "relu"),
        ("softmax", "hidden", "silu"),
        ("softmax", "linear", "relu"),
        *itertools.product(["rms_head", "none", "softmax"], ["residual"], ["silu"]),
        *itertools.product(BOTH_ORDERS, ["hidden", "linear", "residual"], ["silu"]),
    ],
)
def test_every_member_of_the_family_with_masks(normalisation, value, phi):
    torch.manual_seed(1)
    for Tq, Tk, causal in ((36, 36, True), (17, 33, True), (33, 17, True), (9, 40, False)):
        q, k, v = normal(6, Tq, 16, 4), normal(6, Tk, 16, 4), normal(6, Tk, 16, 4)
        padding = torch.rand(6, Tk, device="cuda") > 0.3
        padding[0] = False
        member = {"normalisation": normalisation, "value": value, "phi": phi}
        assert_as_good_as_torch((q, k, v, None), padding, **member, causal=causal)


@pytest.mark.parametrize(
    "preset",
    [
        *("hyla", "hyla_minus_rmshead", "linear", "linear_rmshead"),
        *("softmax", "hyla_minus_rmshead_plus_softmax"),
        *("hyla_plus_softmax", "hyla_plus_softmax_last"),
        *("hyla_residual", "hyla_residual_minus_rmshead_plus_softmax"),
    ],
)
def test_attention_dropout(preset):
    torch.manual_seed(10)
    given = [normal(6, 36, 16, 4).requires_grad_() for _ in "qkv"]
    given.append(normal(1, 16, 36, 36).requires_grad_())
    multiplier, weight = (torch.rand(36, 36, device="cuda") > 0.1) / 0.9, normal(6, 36, 16, 4)

    def with_backend(backend):
        q, k, v, bias = given
        options = {"bias": bias, "code_multiplier": multiplier, "backend": backend}
        output = attention(q, k, v, attention=preset, **options)
        return output, *torch.autograd.grad((output * weight).sum(), given)

    torch.testing.assert_close(
        with_backend("fused"), with_backend("reference"), rtol=1e-4, atol=1e-4
    )


PLANS = [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (8, 2), (16, 1)]


@pytest.mark.parametrize(("lanes", "rows"), PLANS, ids=[f"G{G}R{R}" for G, R in PLANS])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("normalisation", ["rms_head", "softmax", *BOTH_ORDERS])
def test_every_plan_computes_the_same(normalisation, lanes, rows, prefetch, monkeypatch):
    torch.manual_seed(2)
    plan = Plan(lanes=lanes, rows=rows, prefetch=prefetch)
    monkeypatch.setattr(small_head, "choose_plan", lambda pass_name, own: plan)
    q, k, v = (normal(70, 36, 16, 4) for _ in "qkv")
    # Smooth: among 360,000 hidden units some are so near ReLU's kink that rounding decides.
    member = HYLA | {"normalisation": normalisation, "phi": "silu"}
    assert_as_good_as_torch((q, k, v, normal(2, 16, 36, 36)), **member)


SMOOTH = HYLA | {"phi": "silu"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("H", "D"), SIZES, ids=[f"H{H}D{D}" for H, D in SIZES])
def test_biases_by_distance(H, D, dtype):
    torch.manual_seed(14)
    for Tq, Tk in ((2, 3), (15, 17), (17, 16), (36, 36), (4, 36), (63, 40), (97, 97), (130, 7)):
        q = normal(6, Tq, H, D, dtype=dtype)
        k, v = (normal(6, Tk, H, D, dtype=dtype) for _ in "kv")
        tensors = (q, k, v, normal(2, H, Tq + Tk - 1))
        assert_as_good_as_torch(tensors, **member_of(H, "silu"))


WALKS = [(4, 1), (4, 2), (4, 4), (8, 1), (8, 4), (8, 8), (16, 8)]


@pytest.mark.parametrize(("lanes", "warps"), WALKS, ids=[f"G{G}W{W}" for G, W in WALKS])
@pytest.mark.parametrize(
    "member",
    [
        SMOOTH,
        SMOOTH | {"value": "residual"},
        {"normalisation": "none", "value": "linear", "phi": "relu"},
        {"normalisation": "softmax", "value": "linear", "phi": "relu"},
        *(SMOOTH | {"normalisation": name} for name in ("softmax", *BOTH_ORDERS)),
    ],
    ids=lambda member: f"{member['normalisation']}-{member['value']}",
)
def test_every_walk_computes_the_same(lanes, warps, member, monkeypatch):
    torch.manual_seed(15)
    plan = Plan(lanes=lanes, rows=2, threads=32 * warps)
    monkeypatch.setattr(small_head, "choose_one_walk", lambda call, room: plan)
    for Tq, Tk in ((36, 36), (32, 45), (41, 33)):
        q = normal(300, Tq, 16, 4)
        k, v = (normal(300, Tk, 16, 4) for _ in "kv")
        tensors = (q, k, v, normal(3, 16, Tq + Tk - 1))
        assert_as_good_as_torch(tensors, **member)
        first, second = (
            with_gradients(fused, tensors, None, torch.ones_like(q), torch.float32, **member)
            for _ in range(2)
        )
        assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_strided_and_expanded_inputs():
    torch.manual_seed(3)
    packed = normal(5, 36, 3, 16, 4)  # one projection, as a module makes it
    q, k, v = packed.unbind(2)
    assert_as_good_as_torch((q, k, v, None), **HYLA)
    assert_as_good_as_torch((q, k[:1].expand(5, -1, -1, -1), v.flip(1), None), **HYLA)
    heads_first = normal(5, 16, 36, 4).transpose(1, 2)
    assert_as_good_as_torch((heads_first, heads_first, v, None), **HYLA)
    misaligned = normal(5 * 36 * 64 + 1)[1:].view(5, 36, 16, 4)
    assert_as_good_as_torch((misaligned, k, v, None), **HYLA)
    bias = normal(16, 36, 1).expand(1, 16, 36, 36)
    assert_as_good_as_torch((q, k, v, bias), **HYLA)


def test_padded_tokens_do_not_matter_even_if_they_are_nan():
    torch.manual_seed(4)
    q, k, v = (normal(3, 9, 16, 4) for _ in "qkv")
    padding = torch.arange(9, device="cuda") < torch.tensor([[9], [4], [0]], device="cuda")
    clean = fused(q, k, v, padding=padding, **HYLA)
    k, v = (x.masked_fill(~padding[:, :, None, None], float("nan")) for x in (k, v))
    k.requires_grad_()
    dirty = fused(q, k, v, padding=padding, **HYLA)
    assert torch.equal(clean, dirty)
    dirty.sum().backward()
    assert torch.equal(k.grad[~padding], torch.zeros_like(k.grad[~padding]))


every_code_and_value = pytest.mark.parametrize(
    ("normalisation", "value"),
    list(
        itertools.product(
            ["rms_head", "none", "softmax", *BOTH_ORDERS], ["hidden", "linear", "residual"]
        )
    ),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_code_and_value
def test_a_bias_of_minus_infinity_masks_the_pair(normalisation, value, dtype):
    torch.manual_seed(13)
    member = {"normalisation": normalisation, "value": value}
    for H, D, causal in ((16, 4, False), (12, 8, True)):
        q, k, v = (normal(6, 36, H, D, dtype=dtype) for _ in "qkv")
        for deterministic in (False, True):
            options = {"causal": causal, "deterministic": deterministic, **member}
            check_bias_of_minus_infinity(q, k, v, normal(2, H, 36, 36), **options)


@every_code_and_value
def test_not_even_a_nan_comes_from_a_later_token(normalisation, value):
    torch.manual_seed(14)
    member = {"normalisation": normalisation, "value": value}
    for H, D in ((16, 4), (8, 2), (16, 16)):
        q, k, v = (normal(6, 36, H, D) for _ in "qkv")
        check_nan_in_a_later_token(q, k, v, at=22, **member)


def test_batch_beyond_a_grid_dimension():
    torch.manual_seed(5)
    q, k, v = (normal(70_000, 2, 8, 2) for _ in "qkv")
    assert_as_good_as_torch((q, k, v, None), **HYLA)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("phi", ["relu", "gelu", "gelu_tanh", "silu"])
def test_extreme_inputs_stay_finite(scale, phi):
    torch.manual_seed(6)
    for normalisation in ("rms_head", "none", "softmax", *BOTH_ORDERS):
        member = {"normalisation": normalisation, "value": "residual", "phi": phi}
        q, k, v, upstream = (normal(4, 17, 16, 4, scale=x) for x in (scale, scale, scale, 1.0))
        tensors = (q, k, v, None)
        results = with_gradients(fused, tensors, None, upstream, torch.float32, **member)
        assert all(x.isfinite().all() for x in results)


def test_deterministic_runs_are_identical():
    torch.manual_seed(7)
    tensors = (*(normal(256, 36, 16, 4) for _ in "qkv"), normal(1, 16, 36, 36))
    upstream = torch.randn_like(tensors[0])
    options = {"deterministic": True, **HYLA}
    first, second = (
        with_gradients(fused, tensors, None, upstream, torch.float32, **options) for _ in range(2)
    )
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    atomic = with_gradients(fused, tensors, None, upstream, torch.float32, **HYLA)
    torch.testing.assert_close(atomic, first, rtol=1e-4, atol=1e-3)


def test_vmap_folds_a_population_into_the_batch():
    torch.manual_seed(8)
    q, k, v = (normal(3, 10, 36, 16, 4).requires_grad_() for _ in "qkv")
    bias = normal(3, 1, 16, 36, 36).requires_grad_()
    leaves = (q, k, v, bias)

    def one(q, k, v, bias):
        return fused(q, k, v, bias, **HYLA)

    stacked = torch.func.vmap(one)(*leaves)
    alone = torch.stack([one(*(x[i] for x in leaves)) for i in range(3)])
    torch.testing.assert_close(stacked, alone)
    weight = torch.randn_like(stacked)
    expected = torch.autograd.grad((alone * weight).sum(), leaves)
    got = torch.autograd.grad((stacked * weight).sum(), leaves)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)

    def loss(q, k, v, bias, weight):
        return (one(q, k, v, bias) * weight).sum()

    per_member = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3)))(*leaves, weight)
    torch.testing.assert_close(per_member, expected, rtol=1e-4, atol=1e-4)


def test_compiles_as_one_graph():
    torch.manual_seed(9)
    tensors = (*(normal(8, 36, 16, 4) for _ in "qkv"), normal(1, 16, 36, 36))
    upstream = torch.randn_like(tensors[0])

    def layer(q, k, v, bias, padding, **options):
        return 2 * fused(q.sin(), k, v, bias, padding, **options).cos()

    eager = with_gradients(layer, tensors, None, upstream, torch.float32, **HYLA)
    compiled = torch.compile(layer, fullgraph=True)
    got = with_gradients(compiled, tensors, None, upstream, torch.float32, **HYLA)
    torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-4)


def test_captured_in_a_cuda_graph_and_replayed():
    torch.manual_seed(10)
    leaves = [normal(16, 36, 16, 4).requires_grad_() for _ in "qkv"]
    leaves.append(normal(1, 16, 36, 36).requires_grad_())
    options = {"deterministic": True, **HYLA}

    def step():
        output = fused(*leaves, **options)
        gradients = torch.autograd.grad(output.sum(), leaves)
        # Detached: a living graph would tie the leaves to this stream, and break the capture.
        return output.detach(), *gradients

    graph, replayed = captured(step)
    with torch.no_grad():
        for leaf in leaves:
            leaf.copy_(torch.randn_like(leaf))
    graph.replay()
    torch.cuda.synchronize()
    for mine, truth in zip(replayed, step(), strict=True):
        assert torch.equal(mine, truth)


def test_autocast_casts_to_its_dtype():
    torch.manual_seed(11)
    q, k, v = (normal(4, 36, 16, 4).requires_grad_() for _ in "qkv")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = fused(q, k, v, **HYLA)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.float32


def test_a_second_device_stream_is_used():
    torch.manual_seed(12)
    q, k, v = (normal(4, 36, 16, 4) for _ in "qkv")
    expected = fused(q, k, v, **HYLA)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        got = fused(q, k, v, **HYLA)
    stream.synchronize()
    assert torch.equal(got, expected)

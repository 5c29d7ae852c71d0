"""The large-head and decoding kernels on a GPU, held to twice the error of einsums."""

from typing import Any

import pytest
import torch
from kernel_checks import (
    HYLA,
    SCALE,
    captured,
    check,
    check_bias_of_minus_infinity,
    fused,
    normal,
    reference,
    with_gradients,
)

from hyla.attention import attention, packed_attention
from hyla.attention.kernels import large_head
from hyla.attention.kernels.formula import PHIS
from hyla.attention.kernels.plans.tensor_core import TensorCorePlan

pytestmark = pytest.mark.gpu
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 36, 63, 96, 127, 1000])
def test_every_length(tokens):
    torch.manual_seed(0)
    check(*(normal(2, tokens, 8, 64, dtype=torch.bfloat16) for _ in "qkv"), causal=True)


@pytest.mark.parametrize(
    ("heads", "width"),
    [(1, 64), (3, 32), (4, 128), (8, 32), (8, 80), (8, 128), (12, 64), (16, 64), (32, 32), (5, 24)],
)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_head_size(heads, width, dtype):
    torch.manual_seed(1)
    # One head normalises to its sign: then there is no gradient to compare.
    member = {"normalisation": "none"} if heads == 1 else {}
    check(*(normal(2, 70, heads, width, dtype=dtype) for _ in "qkv"), causal=True, **member)


@pytest.mark.parametrize(
    ("heads", "width"), [(32, 64), (16, 128), (32, 128), (20, 48), (12, 100), (17, 128)]
)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rows_that_a_cluster_shares(heads, width, dtype):
    torch.manual_seed(17)
    for queries, keys in ((70, 70), (33, 200), (1, 40)):
        q, k, v = (normal(2, T, heads, width, dtype=dtype) for T in (queries, keys, keys))
        padding = torch.rand(2, keys, device="cuda") > 0.3
        # Of one query's 8,000 hidden units one at ReLU's kink is most of the error: smooth, then.
        phi = "silu" if queries == 1 else "relu"
        for member in ({"phi": phi}, {"normalisation": "none", "phi": "gelu"}):
            check(q, k, v, causal=True, **member)
            check(q, k, v, normal(1, heads, queries, keys, dtype=dtype), padding=padding, **member)


@pytest.mark.parametrize(("heads", "width"), [(32, 64), (16, 128), (32, 128)])
def test_rows_that_a_cluster_shares_again_and_again(heads, width):
    torch.manual_seed(18)
    tensors = [normal(8, 500, heads, width, dtype=torch.bfloat16) for _ in "qkv"]
    upstream = torch.randn_like(tensors[0])
    options = {"causal": True, "deterministic": True, **HYLA}
    dtype = torch.bfloat16
    runs = [with_gradients(fused, tensors, None, upstream, dtype, **options) for _ in range(5)]
    for run in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True))
    atomic = with_gradients(fused, tensors, None, upstream, dtype, causal=True, **HYLA)
    for mine, other in zip(atomic, runs[0], strict=True):
        assert ((mine - other).norm() / other.norm()).item() < 1e-3


@pytest.mark.parametrize("phi", PHIS)
@pytest.mark.parametrize("normalisation", ["rms_head", "none"])
def test_every_member_with_masks_and_unequal_lengths(normalisation, phi):
    torch.manual_seed(2)
    for queries, keys, causal in ((33, 70, True), (70, 33, True), (9, 40, False)):
        q, k, v = (normal(3, T, 8, 64, dtype=torch.bfloat16) for T in (queries, keys, keys))
        padding = torch.rand(3, keys, device="cuda") > 0.3
        padding[0] = False
        member = {"normalisation": normalisation, "phi": phi}
        check(q, k, v, padding=padding, causal=causal, **member)


@pytest.mark.parametrize("biases", [1, 2, 4])
@pytest.mark.parametrize("deterministic", [False, True])
def test_bias_and_its_gradient(biases, deterministic, monkeypatch):
    torch.manual_seed(3)
    q, k, v = (normal(4, 50, 8, 64, dtype=torch.bfloat16) for _ in "qkv")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    for dtype in (torch.float32, torch.bfloat16):
        bias = normal(biases, 8, 50, 50, dtype=dtype)
        check(q, k, v, bias.to(torch.bfloat16), causal=True)
        assert fused(q, k, v, bias, **HYLA).isfinite().all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("normalisation", ["rms_head", "none"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_bias_of_minus_infinity_masks_the_pair(deterministic, normalisation, dtype):
    torch.manual_seed(15)
    options = {"causal": True, "normalisation": normalisation, "deterministic": deterministic}
    for heads, width in ((8, 32), (12, 32), (24, 32), (32, 64), (16, 128)):
        q, k, v = (normal(4, 50, heads, width, dtype=dtype) for _ in "qkv")
        check_bias_of_minus_infinity(q, k, v, normal(2, heads, 50, 50), **options)


def test_a_bias_of_minus_infinity_masks_the_pair_in_decoding():
    torch.manual_seed(16)
    q, k, v = (normal(3, T, 8, 64, dtype=torch.bfloat16) for T in (1, 200, 200))
    bias = normal(3, 8, 1, 200)
    bias[torch.rand(bias.shape, device="cuda") > 0.6] = -torch.inf
    with torch.no_grad():
        got = fused(q, k, v, bias, **HYLA)
    want = reference(*(x.cpu().double() for x in (q, k, v, bias)), **HYLA)
    assert ((got.cpu() - want).norm() / want.norm()).item() < 2**-8


def test_a_long_sequence():
    torch.manual_seed(4)
    q, k, v = (normal(1, 4097, 8, 64, dtype=torch.bfloat16) for _ in "qkv")
    upstream = torch.randn_like(q)
    member = HYLA | {"phi": "silu"}
    ours = with_gradients(fused, (q, k, v), None, upstream, torch.bfloat16, causal=True, **member)
    leaves = [x.float().requires_grad_() for x in (q, k, v)]
    spec = {"attention": "hyla.silu", "causal": True, "scale": SCALE, "backend": "reference"}
    truth = attention(*leaves, **spec)
    truth.backward(upstream.float())
    for mine, exact in zip(ours, (truth, *(x.grad for x in leaves)), strict=True):
        assert ((mine - exact).norm() / exact.norm()).item() < 2**-7


def test_batch_beyond_a_grid_dimension():
    torch.manual_seed(5)
    q, k, v = (normal(66_000, 2, 4, 32, dtype=torch.bfloat16) for _ in "qkv")
    check(q, k, v, phi="silu")


def test_strided_and_expanded_inputs():
    torch.manual_seed(6)
    q, k, v = normal(3, 40, 3, 8, 64, dtype=torch.bfloat16).unbind(2)
    check(q, k, v)
    check(q, k[:1].expand(3, -1, -1, -1), v.flip(1))
    heads_first = normal(3, 8, 40, 64, dtype=torch.bfloat16).transpose(1, 2)
    check(heads_first, heads_first, v)
    misaligned = normal(3 * 40 * 512 + 1, dtype=torch.bfloat16)[1:].view(3, 40, 8, 64)
    check(misaligned, k, v)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("phi", PHIS)
def test_extreme_inputs_stay_finite(scale, phi):
    torch.manual_seed(7)
    tensors = tuple(normal(2, 40, 8, 64, dtype=torch.bfloat16, scale=scale) for _ in "qkv")
    upstream = torch.randn_like(tensors[0])
    member = HYLA | {"phi": phi}
    results = with_gradients(fused, tensors, None, upstream, torch.bfloat16, **member)
    assert all(x.isfinite().all() for x in results)


def test_deterministic_runs_are_identical():
    torch.manual_seed(8)
    tensors = tuple(normal(4, 300, 8, 64, dtype=torch.bfloat16) for _ in "qkv")
    upstream = torch.randn_like(tensors[0])
    options = {"deterministic": True, "causal": True, **HYLA}
    first, second = (
        with_gradients(fused, tensors, None, upstream, torch.bfloat16, **options) for _ in range(2)
    )
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    options["deterministic"] = False
    atomic = with_gradients(fused, tensors, None, upstream, torch.bfloat16, **options)
    for mine, other in zip(atomic, first, strict=True):
        assert ((mine - other).norm() / other.norm()).item() < 1e-3


@pytest.mark.alone
def test_memory_grows_with_the_tokens_not_with_their_square():
    def peak(tokens):
        leaves = [normal(1, tokens, 8, 64, dtype=torch.bfloat16).requires_grad_() for _ in "qkv"]
        fused(*leaves, causal=True, **HYLA).sum().backward()  # compiles
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fused(*leaves, causal=True, **HYLA).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    assert peak(4096) < 4.5 * peak(1024)


@pytest.mark.parametrize(("heads", "width"), [(8, 64), (16, 128)])
def test_packed_sequences(heads, width):
    torch.manual_seed(9)
    lengths = [5, 0, 130, 64, 1]
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    leaves = [normal(200, heads, width, dtype=torch.bfloat16).requires_grad_() for _ in "qkv"]
    upstream = torch.randn_like(leaves[0])
    packed = packed_attention(*leaves, cu_seqlens=starts, causal=True, backend="fused")
    gradients = torch.autograd.grad(packed, leaves, upstream)
    for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        alone = [x[None, a:b].detach().requires_grad_() for x in leaves]
        output = attention(*alone, causal=True, backend="fused")
        assert torch.equal(output[0], packed[a:b])
        for whole, part in zip(
            gradients, torch.autograd.grad(output, alone, upstream[None, a:b]), strict=True
        ):
            torch.testing.assert_close(whole[a:b], part[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize(("heads", "width", "tokens"), [(8, 64, 1000), (12, 80, 63), (32, 128, 9)])
def test_decoding_is_the_last_row(heads, width, tokens, dtype):
    torch.manual_seed(10)
    q, k, v = (normal(3, T, heads, width, dtype=dtype) for T in (1, tokens, tokens))
    padding = torch.rand(3, tokens, device="cuda") > 0.2
    bias = normal(3, heads, 1, tokens)
    member: dict[str, Any] = HYLA | {"phi": "silu"}
    with torch.no_grad():
        got = fused(q, k, v, bias, padding, causal=True, **member)
    double = [x.double() for x in (q, k, v, bias)]
    want = reference(*double, padding=padding, causal=True, **member)
    unit = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    assert ((got - want).norm() / want.norm()).item() < unit


def test_codes_beside_the_fused_path():
    torch.manual_seed(11)
    q, k, v = (normal(2, 40, 8, 64, dtype=torch.bfloat16) for _ in "qkv")
    pairs = torch.tensor([[39, 3], [7, 7]])
    out, code = attention(q, k, v, causal=True, return_code=pairs, backend="fused")
    same, all_codes = attention(q, k, v, causal=True, return_code=True, backend="fused")
    assert torch.equal(out, same)
    chosen = all_codes[:, :, pairs[:, 0], pairs[:, 1]].transpose(1, 2)
    torch.testing.assert_close(code, chosen)


def test_compiled_captured_and_under_autocast():
    torch.manual_seed(12)
    leaves = [normal(2, 64, 8, 64).requires_grad_() for _ in "qkv"]

    def layer(q, k, v):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return attention(q.sin(), k, v, causal=True, backend="fused").float()

    def step(function):
        output = function(*leaves)
        gradients = torch.autograd.grad(output.square().sum(), leaves)
        # Detached: a living graph would tie the leaves to this stream, and break the capture.
        return output.detach(), *gradients

    eager = step(layer)
    compiled = torch.compile(layer, fullgraph=True)
    for mine, truth in zip(step(compiled), eager, strict=True):
        assert mine.dtype == torch.float32
        assert ((mine - truth).norm() / truth.norm()).item() < 1e-2

    graph, replayed = captured(lambda: step(layer))
    graph.replay()
    torch.cuda.synchronize()
    for mine, truth in zip(replayed, eager, strict=True):
        assert ((mine - truth).norm() / truth.norm()).item() < 1e-2


def test_vmap_folds_a_population_into_the_batch():
    torch.manual_seed(13)
    q, k, v = (normal(3, 2, 40, 8, 64, dtype=torch.bfloat16) for _ in "qkv")

    def one(q, k, v):
        return fused(q, k, v, causal=True, **HYLA)

    alone = torch.stack([one(*x) for x in zip(q, k, v, strict=True)])
    assert torch.equal(torch.func.vmap(one)(q, k, v), alone)


@pytest.mark.parametrize(
    ("queries", "keys", "products"),
    [
        *[(*tile, {}) for tile in ((16, 64), (32, 16), (32, 32), (32, 64))],
        (32, 64, {"warpgroups": True}),
    ],
    ids=str,
)
def test_every_plan_computes_the_same(queries, keys, products, monkeypatch):
    torch.manual_seed(14)
    tensors = [normal(2, 100, 8, 64, dtype=torch.bfloat16) for _ in "qkv"]
    expected = fused(*tensors, causal=True, **HYLA)
    plan = TensorCorePlan(queries=queries, keys=keys, warps=8, **products)
    monkeypatch.setattr(large_head, "choose_plan", lambda *_: plan)
    with torch.no_grad():
        got = fused(*tensors, causal=True, **HYLA)
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-2)

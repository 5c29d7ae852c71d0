"""Large heads in plain arithmetic on a GPU: float32, and more heads than the tensor cores take."""

import pytest
import torch
from kernel_checks import (
    HYLA,
    check,
    check_bias_of_minus_infinity,
    check_nan_in_a_later_token,
    fused,
    normal,
    with_gradients,
)

from hyla.attention import attention, packed_attention
from hyla.attention.kernels.formula import PHIS

pytestmark = pytest.mark.gpu
SOFTMAXES = ["softmax", "softmax+rms_head", "rms_head+softmax"]


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 36, 63, 96, 127, 1000])
def test_every_length(tokens):
    torch.manual_seed(0)
    check(*(normal(2, tokens, 8, 64) for _ in "qkv"), causal=True, phi="silu")


@pytest.mark.parametrize(
    ("heads", "width"),
    [(1, 64), (3, 32), (4, 128), (8, 128), (12, 80), (16, 64), (24, 80), (32, 64), (64, 32)],
)
def test_every_head_size(heads, width):
    torch.manual_seed(1)
    # One head normalises to its sign: then there is no gradient to compare.
    member = {"normalisation": "none"} if heads == 1 else {}
    check(*(normal(2, 70, heads, width) for _ in "qkv"), causal=True, phi="silu", **member)


@pytest.mark.parametrize(
    ("heads", "width", "dtype"),
    [(40, 64, torch.bfloat16), (48, 32, torch.float16), (64, 64, torch.bfloat16)],
)
def test_too_many_heads_for_tensor_cores(heads, width, dtype):
    torch.manual_seed(2)
    tensors = [normal(2, 70, heads, width, dtype=dtype) for _ in "qkv"]
    check(*tensors, causal=True)
    options = {"causal": True, "deterministic": True, **HYLA}
    upstream = torch.randn_like(tensors[0])
    runs = [with_gradients(fused, tensors, None, upstream, dtype, **options) for _ in range(2)]
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))
    atomic = with_gradients(fused, tensors, None, upstream, dtype, causal=True, **HYLA)
    for mine, other in zip(atomic, runs[0], strict=True):
        assert ((mine - other).norm() / other.norm()).item() < 1e-3


@pytest.mark.parametrize("phi", PHIS)
@pytest.mark.parametrize("normalisation", ["rms_head", "none", *SOFTMAXES])
def test_every_member_with_masks_and_unequal_lengths(normalisation, phi):
    torch.manual_seed(3)
    member = {"normalisation": normalisation, "phi": phi}
    for queries, keys, causal in ((33, 70, True), (70, 33, True), (9, 40, False)):
        q, k, v = (normal(3, T, 8, 64) for T in (queries, keys, keys))
        padding = torch.rand(3, keys, device="cuda") > 0.3
        padding[0] = False
        check(q, k, v, padding=padding, causal=causal, **member)


@pytest.mark.parametrize("biases", [1, 2, 4])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("normalisation", ["rms_head", *SOFTMAXES])
def test_bias_and_its_gradient(normalisation, biases, deterministic, monkeypatch):
    torch.manual_seed(4)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    q, k, v = (normal(4, 50, 8, 64) for _ in "qkv")
    member = {"normalisation": normalisation, "phi": "silu"}
    check(q, k, v, normal(biases, 8, 50, 50), causal=True, **member)


@pytest.mark.parametrize("normalisation", SOFTMAXES)
@pytest.mark.parametrize("value", ["hidden", "linear"])
def test_a_softmax_at_every_head_size(normalisation, value):
    torch.manual_seed(15)
    member = {"normalisation": normalisation, "value": value, "phi": "silu"}
    for heads, width in ((3, 32), (8, 64), (12, 80), (32, 64), (64, 32)):
        check(*(normal(2, 70, heads, width) for _ in "qkv"), causal=True, **member)
    check(*(normal(2, 70, 40, 64, dtype=torch.bfloat16) for _ in "qkv"), causal=True, **member)


def test_padded_tokens_do_not_matter_even_if_they_are_nan():
    torch.manual_seed(5)
    q, k, v = (normal(3, 40, 8, 64) for _ in "qkv")
    padding = torch.arange(40, device="cuda") < torch.tensor([[40], [13], [0]], device="cuda")
    clean = fused(q, k, v, padding=padding, **HYLA)
    k, v = (x.masked_fill(~padding[:, :, None, None], float("nan")) for x in (k, v))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    dirty = fused(*leaves, padding=padding, **HYLA)
    assert torch.equal(clean, dirty)
    dirty.sum().backward()
    assert leaves[0].grad.isfinite().all()
    assert torch.equal(k.grad[~padding], torch.zeros_like(k.grad[~padding]))


@pytest.mark.parametrize(
    "name",
    [
        *("hyla.silu", "linear_rmshead", "hyla_plus_softmax.silu", "hyla_plus_softmax_last.silu"),
        *("softmax", "hyla_residual_minus_rmshead_plus_softmax.silu"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_dropout(name, dtype):
    torch.manual_seed(16)
    tensors = [normal(2, 70, 8, 64, dtype=dtype) for _ in "qkv"]
    upstream = torch.randn_like(tensors[0])
    multiplier = (torch.rand(70, 70, device="cuda") > 0.2) / 0.8

    def run(backend, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        options = {"code_multiplier": multiplier, "causal": True, "backend": backend}
        output = attention(*leaves, attention=name, **options)
        return output, *torch.autograd.grad(output, leaves, upstream.to(dtype))

    truth = run("reference", torch.float64)
    allowed = 1e-4 if dtype == torch.float32 else 2e-2
    for mine, exact in zip(run("fused", dtype), truth, strict=True):
        assert ((mine - exact).norm() / exact.norm()).item() < allowed


@pytest.mark.parametrize("normalisation", ["rms_head", "none", *SOFTMAXES])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_bias_of_minus_infinity_masks_the_pair(normalisation, deterministic):
    torch.manual_seed(13)
    q, k, v = (normal(4, 50, 8, 64) for _ in "qkv")
    options = {"causal": True, "normalisation": normalisation, "deterministic": deterministic}
    check_bias_of_minus_infinity(q, k, v, normal(2, 8, 50, 50), **options)


def test_not_even_a_nan_comes_from_a_later_token():
    torch.manual_seed(14)
    for heads, width in ((8, 64), (3, 32), (32, 64)):
        q, k, v = (normal(2, 100, heads, width) for _ in "qkv")
        check_nan_in_a_later_token(q, k, v, at=70)


def test_strided_and_expanded_inputs():
    torch.manual_seed(6)
    q, k, v = normal(3, 40, 3, 8, 64).unbind(2)
    check(q, k, v, phi="silu")
    check(q, k[:1].expand(3, -1, -1, -1), v.flip(1), phi="silu")
    heads_first = normal(3, 8, 40, 64).transpose(1, 2)
    check(heads_first, heads_first, v, phi="silu")
    misaligned = normal(3 * 40 * 512 + 1)[1:].view(3, 40, 8, 64)
    check(misaligned, k, v, phi="silu")


def test_batch_beyond_a_grid_dimension():
    torch.manual_seed(7)
    check(*(normal(66_000, 2, 3, 32) for _ in "qkv"), phi="silu")


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_extreme_inputs_stay_finite(scale):
    torch.manual_seed(8)
    for phi in ("relu", "gelu"):
        tensors = tuple(normal(2, 40, 8, 64, scale=scale) for _ in "qkv")
        upstream = torch.randn_like(tensors[0])
        member = HYLA | {"phi": phi}
        results = with_gradients(fused, tensors, None, upstream, torch.float32, **member)
        assert all(x.isfinite().all() for x in results)


def test_deterministic_runs_are_identical():
    torch.manual_seed(9)
    tensors = tuple(normal(4, 300, 8, 64) for _ in "qkv")
    upstream = torch.randn_like(tensors[0])
    options = {"deterministic": True, "causal": True, **HYLA}
    first, second = (
        with_gradients(fused, tensors, None, upstream, torch.float32, **options) for _ in range(2)
    )
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    options["deterministic"] = False
    atomic = with_gradients(fused, tensors, None, upstream, torch.float32, **options)
    torch.testing.assert_close(atomic, first, rtol=1e-4, atol=1e-3)


@pytest.mark.alone
def test_a_long_sequence_takes_memory_for_its_tokens_not_for_their_square():
    torch.manual_seed(10)
    leaves = [normal(1, 4097, 8, 64).requires_grad_() for _ in "qkv"]
    upstream = torch.randn_like(leaves[0])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    member = HYLA | {"phi": "silu"}
    output = fused(*leaves, causal=True, **member)
    ours = [output, *torch.autograd.grad(output, leaves, upstream)]
    assert torch.cuda.max_memory_allocated() - before < 8 * leaves[0].nbytes
    spec = {"attention": "hyla.silu", "causal": True, "scale": 0.7, "backend": "reference"}
    exact = [x.detach().double().requires_grad_() for x in leaves]
    truth = attention(*exact, **spec)
    truth = [truth, *torch.autograd.grad(truth, exact, upstream.double())]
    for mine, want in zip(ours, truth, strict=True):
        assert ((mine - want).norm() / want.norm()).item() < 1e-5


def test_packed_sequences():
    torch.manual_seed(11)
    starts = torch.tensor([0, 5, 5, 135, 199, 200], device="cuda", dtype=torch.int32)
    leaves = [normal(200, 8, 64).requires_grad_() for _ in "qkv"]
    upstream = torch.randn_like(leaves[0])
    packed = packed_attention(*leaves, cu_seqlens=starts, causal=True, backend="fused")
    gradients = torch.autograd.grad(packed, leaves, upstream)
    for a, b in ((0, 5), (5, 135), (135, 199), (199, 200)):
        alone = [x[None, a:b].detach().requires_grad_() for x in leaves]
        output = attention(*alone, causal=True, backend="fused")
        assert torch.equal(output[0], packed[a:b])
        parts = torch.autograd.grad(output, alone, upstream[None, a:b])
        for whole, part in zip(gradients, parts, strict=True):
            torch.testing.assert_close(whole[a:b], part[0], rtol=1e-4, atol=1e-4)


def test_compiles_as_one_graph():
    torch.manual_seed(12)
    leaves = [normal(2, 64, 8, 64).requires_grad_() for _ in "qkv"]

    def layer(q, k, v):
        return attention(q.sin(), k, v, causal=True, backend="fused")

    results = []
    for function in (layer, torch.compile(layer, fullgraph=True)):
        output = function(*leaves)
        results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-3)

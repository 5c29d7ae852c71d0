"""The linear value network in the large-head kernels on a GPU: RMSHead's code, or the scores."""

import pytest
import torch
from kernel_checks import check, check_bias_of_minus_infinity, fused, normal, with_gradients

from hyla.attention import attention, packed_attention

pytestmark = pytest.mark.gpu
LINEAR = {"normalisation": "rms_head", "value": "linear", "phi": "identity"}
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 36, 63, 96, 127, 1000])
@every_dtype
def test_every_length(tokens, dtype):
    torch.manual_seed(0)
    check(*(normal(2, tokens, 8, 64, dtype=dtype) for _ in "qkv"), causal=True, **LINEAR)


@pytest.mark.parametrize(
    ("heads", "width"), [(3, 32), (4, 128), (8, 32), (8, 80), (12, 64), (16, 64), (32, 32), (5, 24)]
)
@every_dtype
def test_every_head_size(heads, width, dtype):
    torch.manual_seed(1)
    check(*(normal(2, 70, heads, width, dtype=dtype) for _ in "qkv"), causal=True, **LINEAR)


@pytest.mark.parametrize("normalisation", ["rms_head", "none"])
@every_dtype
def test_masks_and_unequal_lengths(normalisation, dtype):
    torch.manual_seed(2)
    member = LINEAR | {"normalisation": normalisation}
    for queries, keys, causal in ((33, 70, True), (70, 33, True), (9, 40, False)):
        q, k, v = (normal(3, T, 8, 64, dtype=dtype) for T in (queries, keys, keys))
        padding = torch.rand(3, keys, device="cuda") > 0.3
        padding[0] = False
        check(q, k, v, padding=padding, causal=causal, **member)


@pytest.mark.parametrize("biases", [1, 2, 4])
@pytest.mark.parametrize("deterministic", [False, True])
@every_dtype
def test_bias_and_its_gradient(biases, deterministic, dtype, monkeypatch):
    torch.manual_seed(3)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    q, k, v = (normal(4, 50, 8, 64, dtype=dtype) for _ in "qkv")
    check(q, k, v, normal(biases, 8, 50, 50), causal=True, **LINEAR)
    bias = normal(biases, 8, 50, 50)
    check_bias_of_minus_infinity(q, k, v, bias, deterministic=deterministic, **LINEAR)


@every_dtype
def test_deterministic_runs_are_identical(dtype):
    torch.manual_seed(4)
    tensors = tuple(normal(4, 300, 8, 64, dtype=dtype) for _ in "qkv")
    upstream = torch.randn_like(tensors[0])
    options = {"causal": True, "deterministic": True, **LINEAR}
    runs = [with_gradients(fused, tensors, None, upstream, dtype, **options) for _ in range(2)]
    assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


@every_dtype
def test_packed_sequences(dtype):
    torch.manual_seed(5)
    starts = torch.tensor([0, 17, 17, 80], device="cuda", dtype=torch.int32)
    q, k, v = (normal(80, 8, 64, dtype=dtype) for _ in "qkv")
    options = {"attention": "linear_rmshead", "causal": True, "backend": "fused"}
    got = packed_attention(q, k, v, starts, **options)
    for first, end in ((0, 17), (17, 80)):
        alone = attention(*(x[None, first:end] for x in (q, k, v)), **options)[0]
        torch.testing.assert_close(got[first:end], alone)

"""Keys and values that groups of query heads share, in every kernel on a GPU."""

import pytest
import torch
from kernel_checks import HYLA, check, fused, normal, reference

pytestmark = pytest.mark.gpu
HIDDEN = {"phi": "silu"}
SOFTMAX = HIDDEN | {"normalisation": "softmax"}
SOFTMAX_LAST = HIDDEN | {"normalisation": "rms_head+softmax"}
LINEAR = {"value": "linear", "phi": "identity"}


@pytest.mark.parametrize(
    ("heads", "groups", "width", "dtype", "member"),
    [
        (8, 2, 64, torch.bfloat16, HIDDEN),
        (8, 1, 32, torch.float16, HIDDEN),
        (12, 4, 32, torch.bfloat16, HIDDEN),
        (8, 2, 64, torch.bfloat16, SOFTMAX),
        (8, 2, 64, torch.bfloat16, SOFTMAX_LAST),
        (8, 2, 64, torch.bfloat16, LINEAR),
        (32, 8, 64, torch.bfloat16, HIDDEN),
        (12, 4, 128, torch.bfloat16, HIDDEN),
        # In plain arithmetic.
        (8, 2, 64, torch.float32, HIDDEN),
        (3, 1, 32, torch.float32, HIDDEN),
        (3, 1, 32, torch.float32, SOFTMAX_LAST),
        (8, 2, 64, torch.float32, LINEAR),
        (40, 8, 64, torch.bfloat16, HIDDEN),
        # Small heads.
        (8, 2, 4, torch.float32, HIDDEN),
        (6, 1, 8, torch.float32, LINEAR | {"normalisation": "softmax"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_output_and_gradients(heads, groups, width, dtype, member, deterministic, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    for tokens in (19, 130):
        q = normal(2, tokens, heads, width, dtype=dtype)
        k, v = (normal(2, tokens, groups, width, dtype=dtype) for _ in "kv")
        check(q, k, v, causal=True, **member)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "dtype"),
    [
        (8, 2, 64, torch.bfloat16),
        (8, 1, 64, torch.float32),
        (12, 3, 80, torch.float16),
        (32, 8, 128, torch.bfloat16),
        (32, 1, 128, torch.float32),
        (6, 2, 64, torch.bfloat16),  # groups that cross the teams of lanes
        (10, 1, 64, torch.bfloat16),
        (64, 8, 8, torch.bfloat16),
    ],
    ids=str,
)
def test_decoding(heads, groups, width, dtype):
    torch.manual_seed(1)
    unit = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    for tokens in (70, 1000):
        q = normal(2, 1, heads, width, dtype=dtype)
        k, v = (normal(2, tokens, groups, width, dtype=dtype) for _ in "kv")
        with torch.no_grad():
            got = fused(q, k, v, **HYLA)
        want = reference(*(x.double() for x in (q, k, v)), **HYLA)
        assert ((got - want).norm() / want.norm()).item() < unit

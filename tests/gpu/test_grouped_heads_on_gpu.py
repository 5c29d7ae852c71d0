"""Keys and values that groups of query heads share, in every kernel on a GPU."""

import pytest
import torch
from kernel_checks import HYLA, check, fused, member_of, normal, reference

from grouped_heads import DECODING_CASES, KERNEL_CASES, SHAPES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize((*SHAPES, "name"), KERNEL_CASES, ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
def test_output_and_gradients(heads, groups, width, dtype, name, deterministic, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    for tokens in (19, 130):
        q = normal(2, tokens, heads, width, dtype=dtype)
        k, v = (normal(2, tokens, groups, width, dtype=dtype) for _ in "kv")
        check(q, k, v, causal=True, **member_of(name))


@pytest.mark.parametrize(SHAPES, DECODING_CASES, ids=str)
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

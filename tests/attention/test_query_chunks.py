"""The reference path in query chunks: the same numbers within bounded memory."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_inputs import FAMILY, operands
from hyla.attention import attention
from hyla.attention.paths.chunking import queries_per_chunk
from hyla.attention.spec import resolve_spec

B, T, S, H, D = 2, 7, 6, 3, 4


def run(name, limit, monkeypatch, *, bias_shape=(), mask_shape=(), causal=False):
    """Output, code and all gradients, with pairwise tensors of at most `limit` elements."""
    torch.manual_seed(1)
    monkeypatch.setattr("hyla.attention.paths.chunking.MAX_PAIRWISE_ELEMENTS", limit)
    q, k, v, options = operands(
        name, batch=B, queries=T, keys=S, heads=H, size=D, requires_grad=True
    )
    bias = torch.randn(bias_shape, requires_grad=True)
    multiplier = torch.rand(T, S)
    out, code = attention(
        q,
        k,
        v,
        bias=bias,
        mask=torch.rand(mask_shape) > 0.2,
        causal=causal,
        code_multiplier=multiplier,
        return_code=True,
        **options,
    )
    (out.square().sum() + code.square().sum()).backward()
    leaves = [q, k, v, bias, *([options["value_weight"]] if "value_weight" in options else [])]
    return [out, code, *(x.grad for x in leaves)]


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILY)
def test_chunks_give_the_same_outputs_codes_and_gradients(name, rows, monkeypatch):
    width = H * D if "hyla_deep" in name else D if "hyla" in name else H
    shapes = {"bias_shape": (1, H, T, S), "mask_shape": (B, 1, T, S), "causal": True}
    whole = run(name, 10**9, monkeypatch, **shapes)
    chunked = run(name, rows * B * S * width, monkeypatch, **shapes)
    q, k, v, _ = operands(name, batch=B, queries=T, keys=S, heads=H, size=D)
    assert queries_per_chunk(q, k, v, resolve_spec(name)) == rows
    for got, want in zip(chunked, whole, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "shape", [(), (S,), (1, S), (T, 1), (T, S), (H, 1, S), (H, T, 1), (B, 1, 1, S), (B, H, T, S)]
)
def test_chunks_cut_every_shape_that_broadcasts(shape, monkeypatch):
    whole = run("hyla", 10**9, monkeypatch, bias_shape=shape, mask_shape=shape)
    chunked = run("hyla", 1, monkeypatch, bias_shape=shape, mask_shape=shape)
    for got, want in zip(chunked, whole, strict=True):
        torch.testing.assert_close(got, want)


class LargestTensor(TorchDispatchMode):
    """Records the elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for x in tree_leaves(results):
            if isinstance(x, torch.Tensor):
                # A view that repeats its elements (expand) takes no memory.
                self.elements = max(self.elements, min(x.numel(), x.untyped_storage().size()))
        return results


@pytest.mark.parametrize("name", FAMILY)
def test_no_tensor_exceeds_the_bound(name, monkeypatch):
    limit = 4096
    monkeypatch.setattr("hyla.attention.paths.chunking.MAX_PAIRWISE_ELEMENTS", limit)
    q, k, v, options = operands(name, queries=96, requires_grad=True)
    padding = torch.rand(2, 1, 1, 96) > 0.2
    with LargestTensor() as largest:
        attention(q, k, v, mask=padding, causal=True, **options).sum().backward()
    assert limit < 96 * 96, "a single head's map would break the bound"
    assert q.numel() <= largest.elements <= limit


@pytest.mark.parametrize("name", ["hyla", "softmax", "hyla_deep"])
def test_what_is_kept_for_the_backward_pass_does_not_grow_with_the_pairs(name, monkeypatch):
    monkeypatch.setattr("hyla.attention.paths.chunking.MAX_PAIRWISE_ELEMENTS", 4096)
    q, k, v, options = operands(name, queries=96, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.untyped_storage().data_ptr()) or x, lambda x: x
    ):
        out = attention(q, k, v, causal=True, **options)
    operand_storages = {x.untyped_storage().data_ptr() for x in (q, k, v)}
    assert set(kept) <= operand_storages
    assert out.requires_grad


def test_inference_in_chunks_needs_no_graph(monkeypatch):
    q, k, v, _ = operands("hyla", queries=9, requires_grad=True)
    want = attention(q, k, v)
    monkeypatch.setattr("hyla.attention.paths.chunking.MAX_PAIRWISE_ELEMENTS", 1)
    with torch.no_grad():
        got = attention(q, k, v)
    assert not got.requires_grad
    torch.testing.assert_close(got, want)

"""torch.compile(fullgraph=True): no graph break, the same numbers and gradients.

Graph breaks show with any backend, so most tests here use the one that generates no C++; those
that do take a minute each on two cores, and all but one of those wait for `make test-slow`.
"""

import pytest
import torch

from attention_inputs import FAMILY
from hyla.nn import MultiHeadAttention, Transformer, TransformerConfig

# torch's own: inductor, when it is first imported, uses what torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


def assert_same_compiled(
    module: torch.nn.Module, *inputs: torch.Tensor, backend: str, **options
) -> None:
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    parameters = list(module.parameters())
    want = module(*inputs, **options)
    wanted_gradients = torch.autograd.grad(want.square().sum(), parameters)
    got = compiled(*inputs, **options)
    gradients = torch.autograd.grad(got.square().sum(), parameters)
    torch.testing.assert_close(got, want)
    for gradient, wanted in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)


def test_forward_by_inductor():
    layer, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, causal=True), layer(x, causal=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["hyla", "softmax"])
def test_layer_with_mask_and_bias(name, backend):
    layer = MultiHeadAttention(12, 3, attention=name)
    mask, bias = torch.rand(2, 1, 5, 5) > 0.2, torch.randn(3, 5, 5)
    assert_same_compiled(
        layer, torch.randn(2, 5, 12), mask=mask, bias=bias, causal=True, backend=backend
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY)
def test_cross_attention_of_every_preset(name):
    layer = MultiHeadAttention(12, 3, attention=name, rotary=True)
    assert_same_compiled(layer, torch.randn(2, 5, 12), torch.randn(2, 7, 12), backend="aot_eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_layer_in_query_chunks(monkeypatch, backend):
    monkeypatch.setattr("hyla.attention.paths.chunking.MAX_PAIRWISE_ELEMENTS", 100)
    layer = MultiHeadAttention(12, 3)
    assert_same_compiled(layer, torch.randn(2, 5, 12), causal=True, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("feed_forward", ["gelu", "moe"])
def test_transformer(feed_forward, backend):
    config = TransformerConfig(
        input_dim=8,
        output_dim=5,
        sequence_length=6,
        embed_dim=12,
        qk_dim=12,
        v_dim=12,
        mlp_dim=16,
        num_heads=3,
        num_layers=2,
        feed_forward=feed_forward,
    )
    assert_same_compiled(Transformer(config), torch.randn(2, 6, 8), backend=backend)


def test_export_with_any_number_of_tokens():
    layer, tokens = MultiHeadAttention(12, 3), torch.export.Dim("tokens", min=2, max=512)
    shapes = {"x": {1: tokens}, "causal": None}
    exported = torch.export.export(
        layer, (torch.randn(2, 5, 12),), {"causal": True}, dynamic_shapes=shapes
    )
    x = torch.randn(2, 9, 12)
    torch.testing.assert_close(exported.module()(x, causal=True), layer(x, causal=True))

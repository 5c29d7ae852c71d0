"""Attention is a hypernetwork: explicit generated weights give the layer's own output (Eq. 2-7)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hyla.attention import attention
from hyla.attention.hypernetwork import (
    hidden_value_network,
    linear_value_network,
    pair_codes,
)
from hyla.nn import MultiHeadAttention

TOLERANCE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def layer_and_tokens(
    name: str, setting: str
) -> tuple[MultiHeadAttention, Tensor, Tensor, Tensor, Tensor]:
    """A float64 layer, its queries' and keys' tokens, and its output and code.

    The identity is about weights: the value biases stay 0 and the output bias is taken off.
    """
    layer = MultiHeadAttention(6, 3, qk_dim=12, v_dim=9, attention=name).double()
    torch.nn.init.normal_(layer.q_proj.bias)
    torch.nn.init.normal_(layer.k_proj.bias)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    context = torch.randn(2, 7, 6, dtype=torch.float64) if setting == "cross" else None
    out, code = layer(x, context, causal=setting == "causal", return_code=True)
    return layer, x, x if context is None else context, out - layer.out_proj.bias, code


def all_pairs(code: Tensor) -> Tensor:
    """Every (batch, query, key), in the order of a [B, Tq, Tk] tensor."""
    B, _, Tq, Tk = code.shape
    return torch.cartesian_prod(torch.arange(B), torch.arange(Tq), torch.arange(Tk))


def sum_over_keys(per_pair: Tensor, code: Tensor) -> Tensor:
    B, _, Tq, Tk = code.shape
    return per_pair.unflatten(0, (B, Tq, Tk)).sum(dim=2)


@pytest.mark.parametrize("setting", ["self", "causal", "cross"])
@pytest.mark.parametrize("name", ["softmax", "linear", "linear_rmshead"])
def test_generated_linear_networks_sum_to_multi_head_attention(name, setting):
    layer, _, tokens, out, code = layer_and_tokens(name, setting)
    pairs = all_pairs(code)
    w_qk = linear_value_network(pair_codes(code, pairs), *layer.head_weights()).weight
    per_pair = torch.einsum("noe,ne->no", w_qk, tokens[pairs[:, 0], pairs[:, 2]])
    torch.testing.assert_close(sum_over_keys(per_pair, code), out, **TOLERANCE)


@pytest.mark.parametrize("setting", ["self", "causal", "cross"])
@pytest.mark.parametrize("name", ["hyla", "hyla_minus_nonlinearity", "hyla_plus_softmax"])
def test_generated_hidden_layers_sum_to_hyla(name, setting):
    layer, _, tokens, out, code = layer_and_tokens(name, setting)
    pairs = all_pairs(code)
    network = hidden_value_network(pair_codes(code, pairs), *layer.head_weights())
    inner = torch.einsum("nde,ne->nd", network.inner, tokens[pairs[:, 0], pairs[:, 2]])
    per_pair = torch.einsum("nod,nd->no", network.outer, layer.spec.activate(inner))
    torch.testing.assert_close(sum_over_keys(per_pair, code), out, **TOLERANCE)


def test_hidden_layer_without_nonlinearity_is_the_product_of_its_two_sides():
    layer, _, _, _, code = layer_and_tokens("hyla", "self")
    codes = pair_codes(code, torch.tensor([[1, 2, 3], [0, 4, 0]]))
    network = hidden_value_network(codes, *layer.head_weights())
    assert network.inner.shape == (2, 3, 6)
    assert network.outer.shape == (2, 6, 3)
    w_value, w_out = layer.head_weights()
    by_hand = sum(
        codes[0, h] * codes[0, i] * w_out[h] @ w_value[i] for h in range(3) for i in range(3)
    )
    torch.testing.assert_close(network.outer[0] @ network.inner[0], by_hand, **TOLERANCE)


def test_pair_codes_picks_batch_query_and_key():
    code = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    picked = pair_codes(code, torch.tensor([[1, 2, 3], [0, 0, 4]]))
    torch.testing.assert_close(picked, torch.stack([code[1, :, 2, 3], code[0, :, 0, 4]]))


@pytest.mark.parametrize("shape", [(3,), (4, 2)])
def test_pair_codes_names_a_wrong_shape_of_pairs(shape):
    with pytest.raises(ValueError, match=r"pairs must list \(batch, query, key\) as \[N, 3\]"):
        pair_codes(torch.zeros(1, 2, 3, 3), torch.zeros(shape, dtype=torch.long))


def test_deep_value_network_is_equation_10_pair_by_pair():
    B, T, H, D = 2, 3, 2, 4
    q, k, v = torch.randn(3, B, T, H, D, dtype=torch.float64)
    weight = torch.randn(H, D, D, dtype=torch.float64)
    out, code = attention(q, k, v, attention="hyla_deep", value_weight=weight, return_code=True)
    want = torch.zeros_like(out)
    for b, i, j in all_pairs(code).tolist():
        a = code[b, :, i, j]
        inner = torch.stack([a[h] * v[b, j, h] for h in range(H)]).sum(0).relu()
        middle = torch.stack([a[h] * weight[h] @ inner for h in range(H)]).sum(0).relu()
        for h in range(H):
            want[b, i, h] += a[h] * middle
    torch.testing.assert_close(out, want, **TOLERANCE)

"""GELU MLP, SwiGLU and the mixture of experts against their formulas."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hyla.nn import GeluMlp, MixtureOfExperts, SwiGlu


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_gelu_mlp_uses_the_tanh_approximation_and_biases():
    layer = GeluMlp(4, 8).double()
    torch.nn.init.normal_(layer.up.bias)
    torch.nn.init.normal_(layer.down.bias)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    hidden = gelu_tanh(x @ layer.up.weight.T + layer.up.bias)
    torch.testing.assert_close(layer(x), hidden @ layer.down.weight.T + layer.down.bias)


def test_swiglu_gates_and_has_no_biases():
    layer = SwiGlu(4, 8).double()
    assert set(layer.state_dict()) == {"gate.weight", "up.weight", "down.weight"}
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    gate, up = x @ layer.gate.weight.T, x @ layer.up.weight.T
    torch.testing.assert_close(layer(x), (gate * torch.sigmoid(gate) * up) @ layer.down.weight.T)


@pytest.mark.parametrize(("num_experts", "top_k"), [(4, 2), (3, 1), (2, 2)])
def test_mixture_is_the_papers_formula_token_by_token(num_experts, top_k):
    layer = MixtureOfExperts(4, 6, num_experts=num_experts, top_k=top_k).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    got = layer(x)
    for b in range(2):
        for t in range(5):
            gates = layer.gate.weight @ x[b, t]
            chosen = gates.argsort(descending=True)[:top_k].tolist()
            total = sum(gates[i].exp() for i in chosen)
            want = sum(
                gates[i].exp() / total * (gelu_tanh(x[b, t] @ layer.up[i]) @ layer.down[i])
                for i in chosen
            )
            torch.testing.assert_close(got[b, t], want)


def test_experts_that_are_not_chosen_get_no_gradient():
    layer = MixtureOfExperts(4, 6, num_experts=3, top_k=1)
    x = torch.randn(1, 4)
    chosen = int(layer.gate(x).argmax())
    layer(x).square().sum().backward()
    norms = layer.up.grad.flatten(1).norm(dim=1)
    assert (norms > 0).tolist() == [i == chosen for i in range(3)]


def gate_to(layer: MixtureOfExperts, weight: torch.Tensor) -> None:
    with torch.no_grad():
        layer.gate.weight.copy_(weight)


def test_load_balancing_loss_is_1_when_balanced():
    layer = MixtureOfExperts(4, 6, num_experts=4, top_k=1)
    gate_to(layer, torch.eye(4))
    tokens = 3 * torch.eye(4).expand(2, 4, 4)  # each expert gets a quarter of the tokens
    torch.testing.assert_close(layer.load_balancing_loss(tokens), torch.tensor(1.0))


def test_load_balancing_loss_is_the_number_of_experts_when_one_gets_everything():
    layer = MixtureOfExperts(4, 6, num_experts=4, top_k=1)
    gate_to(layer, 50 * torch.eye(4))
    tokens = torch.eye(4)[[0, 0, 0]]
    torch.testing.assert_close(layer.load_balancing_loss(tokens), torch.tensor(4.0))


def test_load_balancing_loss_counts_the_chosen_and_pulls_the_gate():
    layer = MixtureOfExperts(4, 6, num_experts=3, top_k=2)
    x = torch.randn(7, 5, 4)
    loss = layer.load_balancing_loss(x)
    gates = layer.gate(x).reshape(35, 3)
    counts = torch.zeros(3)
    for token in gates:
        counts[token.topk(2).indices] += 1
    want = 3 * (counts / 70 * F.softmax(gates, dim=-1).mean(dim=0)).sum()
    torch.testing.assert_close(loss, want)
    loss.backward()
    assert layer.gate.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("experts", "match"),
    [
        pytest.param({"num_experts": 0, "top_k": 1}, "^num_experts must be at least 1", id="none"),
        pytest.param({"num_experts": 2, "top_k": 0}, "^top_k must be at least 1", id="top-0"),
        pytest.param({"num_experts": 2, "top_k": 3}, "^top_k=3 exceeds num_experts=2", id="top-3"),
    ],
)
def test_mixture_names_what_is_wrong(experts, match):
    with pytest.raises(ValueError, match=match):
        MixtureOfExperts(4, 6, **experts)


@pytest.mark.parametrize(
    "layer", [GeluMlp, SwiGlu, partial(MixtureOfExperts, num_experts=2, top_k=1)]
)
@pytest.mark.parametrize(
    ("sizes", "match"),
    [
        ((0, 8), "^embed_dim must be at least 1, got 0"),
        ((4, -8), "^mlp_dim must be at least 1, got -8"),
        ((4, 8.0), r"^mlp_dim must be an integer, got 8\.0"),
    ],
    ids=str,
)
def test_sizes_are_positive_integers(layer, sizes, match):
    with pytest.raises(ValueError, match=match):
        layer(*sizes)


def test_sizes_may_be_numpys():
    sizes: list[Any] = [np.int64(4), np.int32(8), np.int64(2), np.int64(1)]
    layer = MixtureOfExperts(*sizes[:2], num_experts=sizes[2], top_k=sizes[3])
    assert layer(torch.randn(2, 4)).shape == (2, 4)

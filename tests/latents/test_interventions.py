"""Edits reach the code, the code they are given, and nothing else."""

import numpy as np
import pytest
import torch

from attention_inputs import FAMILY
from hyla.attention.hypernetwork import linear_value_network
from hyla.latents import (
    Site,
    UnsupportedModelError,
    edited,
    moved,
    record_codes,
    replaced,
    run_recorded,
    zeroed,
)
from hyla.nn import MultiHeadAttention
from tiny_runs import tiny_transformer

LAST = [(-1, -1), (-1, 0)]


@torch.no_grad()
def outputs(network, x, edits):
    with edited(network, edits):
        return network(x)


@pytest.mark.parametrize("attention", sorted(FAMILY))
def test_its_own_code_changes_nothing(attention):
    network, x = tiny_transformer(attention=attention), torch.randn(3, 7, 5)
    want, seen = run_recorded(network, x, pairs=LAST)
    edits = {site: replaced(found.codes, LAST) for site, found in seen.items()}
    torch.testing.assert_close(outputs(network, x, edits), want)


def test_another_code_changes_its_query_alone():
    network, x = tiny_transformer(num_layers=1), torch.randn(3, 7, 5)
    with torch.no_grad():
        want = network(x)
    got = outputs(network, x, {0: replaced(torch.ones(4), LAST)})
    assert torch.allclose(got[:, :-1], want[:, :-1], atol=1e-6)
    assert not torch.allclose(got[:, -1], want[:, -1], atol=1e-3)


def test_edited_codes_are_the_ones_used_and_recorded():
    network, x = tiny_transformer(), torch.randn(2, 7, 5)
    new = torch.randn(2, 2, 4)
    with edited(network, {1: replaced(new, LAST)}):
        table = record_codes(network, x, pairs=LAST)
    np.testing.assert_allclose(table.where(layer=1).codes, new.flatten(0, 1).numpy(), atol=1e-6)
    clean = record_codes(network, x, pairs=LAST)
    np.testing.assert_array_equal(table.where(layer=0).codes, clean.where(layer=0).codes)


def test_heads_directions_and_zero():
    network, x = tiny_transformer(), torch.randn(2, 7, 5)
    clean = record_codes(network, x, pairs=LAST).where(layer=0).codes

    def codes(edit):
        with edited(network, {0: edit}):
            return record_codes(network, x, pairs=LAST).where(layer=0).codes

    assert not codes(zeroed(LAST)).any()
    ablated = codes(zeroed(LAST, heads=[2]))
    assert not ablated[:, 2].any()
    np.testing.assert_allclose(ablated[:, [0, 1, 3]], clean[:, [0, 1, 3]], atol=1e-6)
    direction = torch.tensor([1.0, -1.0, 0.0, 2.0])
    steered = codes(moved(direction, 0.5, LAST))
    np.testing.assert_allclose(steered, clean + 0.5 * direction.numpy(), atol=1e-5)


def test_the_value_network_is_the_one_of_the_new_code():
    """With one key, the output is W_qk x_k of the code that was put in (Eq. 5)."""
    layer = MultiHeadAttention(6, 3, attention="linear").eval()
    for bias in (layer.v_proj.bias, layer.out_proj.bias):
        assert not bias.any()
    x, code = torch.randn(1, 1, 6), torch.tensor([[0.3, -1.0, 2.0]])
    got = outputs(layer, x, {0: replaced(code[0], [(0, 0)])})
    weight = linear_value_network(code, *layer.head_weights()).weight[0]
    torch.testing.assert_close(got[0, 0], weight @ x[0, 0])


def test_edits_within_edits_come_one_after_the_other():
    network, x = tiny_transformer(), torch.randn(2, 7, 5)
    want = outputs(network, x, {1: zeroed([(0, 0), (1, 1)])})
    with edited(network, {1: zeroed([(0, 0)])}):
        torch.testing.assert_close(outputs(network, x, {1: zeroed([(1, 1)])}), want)
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    with edited(layer, {0: moved(torch.ones(2), 1.0, "all")}):  # after what the caller does
        _, code = layer(x, return_code=True, edit_code=torch.zeros_like)
    assert code.eq(1).all()


def test_layers_that_there_are_not():
    network, x = tiny_transformer(), torch.randn(2, 7, 5)
    with pytest.raises(UnsupportedModelError, match="nothing was edited"):
        outputs(network, x, {4: zeroed(LAST)})
    with pytest.raises(UnsupportedModelError, match="nothing was edited"):
        outputs(network, x, {Site("cross", 0): zeroed(LAST)})
    assert not any(module._forward_hooks for module in network.modules())


def test_gradients_flow_through_an_edited_code():
    network, x = tiny_transformer(), torch.randn(2, 7, 5)
    code = torch.zeros(4, requires_grad=True)
    with edited(network, {1: moved(code, 1.0, LAST)}):
        network(x)[:, -1].sum().backward()
    assert code.grad is not None
    assert code.grad.abs().sum() > 0

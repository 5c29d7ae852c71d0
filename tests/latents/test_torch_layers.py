"""Codes of PyTorch's own attention layers are the weights that these layers give."""

import numpy as np
import pytest
import torch
from torch import nn

from hyla.latents import (
    Site,
    UnsupportedModelError,
    edited,
    record_codes,
    replaced,
    run_recorded,
    value_networks,
    zeroed,
)


def layer(**options) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(12, 3, **({"batch_first": True} | options)).eval()


def encoder(**options) -> nn.TransformerEncoder:
    one = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True, **options)
    return nn.TransformerEncoder(one, 2, enable_nested_tensor=False).eval()


@pytest.mark.parametrize("batch_first", [True, False])
def test_codes_of_a_layer(batch_first):
    attention = layer(batch_first=batch_first)
    x = torch.randn(2, 5, 12) if batch_first else torch.randn(5, 2, 12)
    _, want = attention(x, x, x, average_attn_weights=False)
    table = record_codes(attention, x, pairs="all")
    picked = want[table["instance"], :, table["query"], table["key"]]
    torch.testing.assert_close(torch.from_numpy(table.codes), picked.detach())


@pytest.mark.parametrize("batch_first", [True, False])
def test_instances_of_a_second_batch_are_numbered_after_the_first(batch_first):
    x = torch.randn(5, 3, 12) if batch_first else torch.randn(3, 5, 12)
    table = record_codes(layer(batch_first=batch_first), [x, x], labels={"y": range(10)})
    assert table["instance"].tolist() == table["y"].tolist() == np.arange(10).repeat(3).tolist()
    with pytest.raises(ValueError, match="holds 9 values for more"):
        record_codes(layer(batch_first=batch_first), [x, x], labels={"y": range(9)})


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_layer_returns_what_its_caller_asked_for(batch_first):
    attention = layer(batch_first=batch_first)
    x = torch.randn(4, 12)
    for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        want = attention(x, x, x, **options)
        inputs = {"query": x, "key": x, "value": x}
        with edited(attention, {}):
            found = attention(**inputs, **options)
        torch.testing.assert_close(found, want)


def test_cross_attention_is_told_apart():
    x, context = torch.randn(2, 3, 12), torch.randn(2, 5, 12)
    _, seen = run_recorded(layer(), {"query": x, "key": context, "value": context}, pairs="all")
    assert [(site, found.lengths) for site, found in seen.items()] == [(Site("cross", 0), (3, 5))]


def test_layers_inside_an_encoder_are_numbered_and_keep_what_it_computes():
    model, x = encoder(), torch.randn(2, 5, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad():
        want = model(x, mask=mask, is_causal=True)
    output, seen = run_recorded(model, {"src": x, "mask": mask}, pairs="all")
    torch.testing.assert_close(output, want, atol=1e-5, rtol=1e-4)
    assert list(seen) == [Site("self", 0), Site("self", 1)]
    ahead = seen[Site("self", 0)].pairs
    assert not seen[Site("self", 0)].codes[:, ahead[:, 1] > ahead[:, 0]].any()


def test_its_own_code_changes_nothing_and_another_does():
    model, x = encoder(), torch.randn(2, 5, 12)
    want, seen = run_recorded(model, x, pairs="all")
    with edited(model, {site: replaced(found.codes, "all") for site, found in seen.items()}):
        own, _ = run_recorded(model, x)
    torch.testing.assert_close(own, want, atol=1e-5, rtol=1e-4)
    with edited(model, {Site("self", 0): zeroed("all")}):
        other, _ = run_recorded(model, x)
    assert not torch.allclose(other, want, atol=1e-3)


def test_value_networks_compute_what_the_layer_does():
    attention, x = layer(), torch.randn(2, 4, 12)
    nn.init.normal_(attention.in_proj_bias)
    (networks,) = value_networks(attention, {"query": x, "key": x, "value": x}).values()
    out, code = attention(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(networks(code, x), out, atol=1e-5, rtol=1e-4)


def test_keys_that_are_no_positions_are_refused():
    with pytest.raises(UnsupportedModelError, match="keys that are no positions"):
        record_codes(layer(add_zero_attn=True), torch.randn(1, 2, 12))

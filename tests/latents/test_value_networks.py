"""The identity of Eq. 4-5 for models of Hugging Face: attention is a sum of generated maps."""

import pytest
import torch

from hyla.attention.hypernetwork import linear_value_network
from hyla.integrations.transformers import HylaConfig, HylaForCausalLM
from hyla.integrations.transformers.codes.interception import AttentionCall, intercepted
from hyla.latents import Site, UnsupportedModelError, value_networks
from hyla.latents.capture import run
from hyla.nn import MultiHeadAttention
from tiny_pretrained import ARCHITECTURES, tiny_inputs, tiny_pretrained


def calls_of(model, inputs) -> dict[Site, AttentionCall]:
    calls: dict[Site, AttentionCall] = {}

    def keep(call: AttentionCall) -> None:
        calls[call.site] = call

    with intercepted(model, keep):
        run(model, inputs)
    return calls


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_products_and_codes_give_what_the_layer_computes(name):
    model = tiny_pretrained(name)
    inputs = tiny_inputs(model, length=5)
    found = value_networks(model, inputs)  # raises where the identity does not hold
    calls = calls_of(model, inputs)
    assert found.keys() == calls.keys()
    for site, networks in found.items():
        call = calls[site]
        heads = call.code.shape[1]
        assert networks.products().shape == (heads, 16, 16)
        assert networks.w_value.shape[0] == heads  # grouped heads have a copy each
        # The sum over keys written out for one query, from W_qk of its pairs alone.
        codes = call.code[0, :, -1].T  # [Tk, H]
        weights, biases = networks.weights(codes), networks.biases(codes)
        mixed = torch.einsum("kh,hoe->koe", codes, networks.products())
        torch.testing.assert_close(weights, mixed, atol=1e-4, rtol=1e-4)
        out = torch.einsum("koe,ke->o", weights, call.source[0]) + biases.sum(dim=0)
        if networks.b_out is not None:
            out = out + networks.b_out
        want = networks(call.code, call.source)[0, -1]
        torch.testing.assert_close(out, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bart"])
def test_a_wrong_reading_is_an_error(name, monkeypatch):
    """If the projection that is read were not the one that is used, it would show."""
    model = tiny_pretrained(name)
    inputs = tiny_inputs(model, length=4)
    value_networks(model, inputs)
    monkeypatch.setattr(
        "hyla.integrations.transformers.codes.projections._VALUE_NAMES", ("k_proj", "c_attn_none")
    )
    with pytest.raises(UnsupportedModelError):
        value_networks(model, inputs)
    assert not any(m._forward_hooks for m in model.modules())


def test_outputs_that_are_not_the_sum_are_an_error():
    model = tiny_pretrained("llama")
    layer = model.model.layers[0].self_attn
    layer.o_proj.register_forward_hook(lambda module, args, out: out * 1.5)
    with pytest.raises(UnsupportedModelError, match="not the sum of its value networks"):
        value_networks(model, tiny_inputs(model, length=4))


def test_models_that_are_not_of_transformers_are_told_what_to_do():
    tokens = torch.randint(3, 40, (1, 4))
    layer = MultiHeadAttention(8, num_heads=2)
    config = HylaConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    for model in (torch.nn.Sequential(layer), HylaForCausalLM(config)):
        with pytest.raises(UnsupportedModelError, match=r"layer\.head_weights\(\) to linear_value"):
            value_networks(model, tokens)
    with pytest.raises(UnsupportedModelError, match="Linear is not a transformers model"):
        value_networks(torch.nn.Linear(2, 2), tokens)


def test_our_layers_give_theirs_as_the_error_says():
    x = torch.randn(1, 3, 8)
    layer = MultiHeadAttention(8, num_heads=2, attention="softmax")
    out, code = layer(x, return_code=True)
    weight = linear_value_network(code[0, :, -1].T, *layer.head_weights()).weight
    torch.testing.assert_close(torch.einsum("koe,ke->o", weight, x[0]), out[0, -1])

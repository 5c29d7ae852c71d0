"""Codes of Hugging Face models are the attention weights that the library itself reports."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from hyla import RECOMMENDED
from hyla.integrations.transformers import register
from hyla.latents import (
    Site,
    UnsupportedModelError,
    edited,
    record_codes,
    replaced,
    run_recorded,
    zeroed,
)
from hyla.latents.capture import LayerCodes
from hyla.latents.observe import Observer, observing
from tiny_pretrained import ARCHITECTURES, tiny_inputs, tiny_pretrained

FIELDS = {
    "self": "attentions",
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "cross": "cross_attentions",
}


def reported(model, inputs) -> dict[Site, torch.Tensor]:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    return {
        Site(kind, layer): code
        for kind, field in FIELDS.items()
        for layer, code in enumerate(getattr(output, field, None) or ())
    }


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_codes_equal_output_attentions_layer_by_layer(name):
    model = tiny_pretrained(name)
    inputs = tiny_inputs(model)
    table = record_codes(model, inputs, pairs="all")
    want = reported(model, inputs)
    kinds = {"encoder", "decoder", "cross"} if model.config.is_encoder_decoder else {"self"}
    assert {site.kind for site in want} == kinds == set(table["kind"])
    for site, code in want.items():
        rows = table.where(kind=site.kind, layer=site.layer)
        assert rows.codes.shape == (code[:, 0].numel(), code.shape[1])
        picked = code[rows["instance"], :, rows["query"], rows["key"]].numpy()
        np.testing.assert_allclose(rows.codes, picked, atol=1e-6)
        assert picked.std() > 0.01


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gemma2", "bart"])
def test_causality_is_not_lost(name):
    model = tiny_pretrained(name)
    inputs = tiny_inputs(model)
    output, _ = run_recorded(model, inputs)
    kind = "decoder" if model.config.is_encoder_decoder else "self"
    rows = record_codes(model, inputs, pairs="all").where(kind=kind)
    future = rows["key"] > rows["query"]
    assert not rows.codes[future].any()
    with torch.no_grad():
        want = model(**inputs)  # by the implementation that the model came with
    torch.testing.assert_close(output[0], want[0], atol=1e-4, rtol=1e-4)


def test_padding_is_left_out():
    model = tiny_pretrained("llama")
    inputs = tiny_inputs(model) | {"attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    inputs["attention_mask"][0, :4] = 0
    table = record_codes(model, inputs, pairs="self")
    assert table.where(instance=0, layer=0)["query"].tolist() == [4, 5, 6, 7, 8]
    assert len(table.where(instance=1, layer=0)) == 9


def test_the_mask_of_a_text_leaves_a_picture_alone():
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 24,
    }
    config = transformers.CLIPConfig(
        text_config=sizes | {"vocab_size": 40, "eos_token_id": 2, "pad_token_id": 0},
        vision_config=sizes | {"image_size": 8, "patch_size": 4},
    )
    inputs = {
        "input_ids": torch.randint(3, 40, (2, 7)),
        "pixel_values": torch.randn(2, 3, 8, 8),  # 4 patches and a token of the class
        "attention_mask": torch.tensor([[1, 1, 1, 0, 0, 0, 0], [1] * 7]),
    }
    table = record_codes(transformers.CLIPModel(config).eval(), inputs)
    rows = [len(table.where(layer=layer)) for layer in table.layers]
    assert sorted(rows) == [2 * 5, 3 + 7]


def test_keys_of_a_cache_are_counted():
    model = tiny_pretrained("llama")
    ids = tiny_inputs(model)["input_ids"]
    want = record_codes(model, ids, pairs=[(-1, -1)])
    seen = {}

    class Last(Observer):
        def pairs(self, site, num_queries, num_keys):
            return torch.tensor([[num_queries - 1, num_keys - 1]])

        def receive(self, site, codes, x):
            seen[site.layer] = codes[:, 0].numpy()

    with torch.no_grad():
        past = model(ids[:, :-1], use_cache=True).past_key_values
        with observing(model, Last()):
            model(ids[:, -1:], past_key_values=past)
    for layer, codes in seen.items():
        np.testing.assert_allclose(codes, want.where(layer=layer).codes, atol=1e-5)


def test_the_model_is_left_as_it_was():
    model = tiny_pretrained("llama")
    before = model.config._attn_implementation
    inputs = tiny_inputs(model)
    record_codes(model, inputs)
    assert model.config._attn_implementation == before != "hyla_latents"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(ValueError, match="pair"):
        record_codes(model, inputs, pairs=[(99, 99)])
    assert model.config._attn_implementation == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_wrapped_models_are_found():
    model = tiny_pretrained("llama")

    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = model

        def forward(self, input_ids):
            return self.inside(input_ids).logits

    inputs = tiny_inputs(model)
    want = record_codes(model, inputs)
    np.testing.assert_array_equal(record_codes(Wrapper(), inputs).codes, want.codes)


@pytest.mark.parametrize("architecture", ["bloom", "xlnet"])
def test_architectures_that_ignore_the_interface_are_refused(architecture):
    sizes: dict[str, Any] = {"vocab_size": 40, "n_layer": 1, "n_head": 2}
    if architecture == "bloom":
        model = transformers.BloomModel(transformers.BloomConfig(hidden_size=8, **sizes))
    else:
        config = transformers.XLNetConfig(d_model=8, d_inner=8, **sizes)
        model = transformers.XLNetModel(config)
    with pytest.raises(UnsupportedModelError, match="without transformers' AttentionInterface"):
        record_codes(model, {"input_ids": torch.randint(3, 40, (1, 4))})


def test_attention_that_is_not_the_librarys_is_refused():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def somebodys(module, query, key, value, attention_mask, **kwargs):
        return value.repeat_interleave(2, dim=1).transpose(1, 2), None

    transformers.AttentionInterface.register("somebodys", somebodys)
    transformers.AttentionMaskInterface.register("somebodys", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model = tiny_pretrained("llama")
    model.set_attn_implementation("somebodys")
    with pytest.raises(UnsupportedModelError, match="attends by 'somebodys'"):
        record_codes(model, tiny_inputs(model))


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_its_own_code_changes_nothing_and_another_does(name):
    model = tiny_pretrained(name)
    inputs = tiny_inputs(model)
    want, seen = run_recorded(model, inputs, pairs="all")
    with edited(model, {site: replaced(found.codes, "all") for site, found in seen.items()}):
        own, _ = run_recorded(model, inputs)
    torch.testing.assert_close(own[0], want[0], atol=1e-4, rtol=1e-4)
    with edited(model, {next(iter(seen)): zeroed("all")}):
        other, _ = run_recorded(model, inputs)
    assert not torch.allclose(other[0], want[0], atol=1e-3)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "bert", "t5"])
@pytest.mark.parametrize("attention", [RECOMMENDED, "linear", "softmax"])
def test_models_that_attend_by_a_name_of_ours(architecture, attention):
    register()
    model = tiny_pretrained(architecture)
    model.set_attn_implementation(attention)
    inputs = tiny_inputs(model)
    with torch.no_grad():
        want = model(**inputs)[0]
    # Under this name, layers hand their code on as the weights.
    output, seen = run_recorded(model, inputs, pairs="all")
    torch.testing.assert_close(output[0], want, atol=1e-5, rtol=1e-4)
    assert model.config._attn_implementation == attention
    site, found = next(iter(seen.items()))
    assert found.codes.std() > 0.01
    assert (attention == "softmax") == torch.allclose(_sums(found), torch.ones(()), atol=1e-4)
    with edited(model, {site: replaced(found.codes, "all") for site, found in seen.items()}):
        own, _ = run_recorded(model, inputs)
    torch.testing.assert_close(own[0], want, atol=1e-4, rtol=1e-3)
    with edited(model, {site: zeroed("all")}):
        other, _ = run_recorded(model, inputs)
    assert not torch.allclose(other[0], want, atol=1e-4)


def _sums(found: LayerCodes) -> torch.Tensor:
    """The codes of the first sequence's last query, summed over its keys."""
    of_last = found.pairs[:, 0] == found.lengths[0] - 1
    return found.codes[0, of_last].sum(dim=0)

"""Servers put attention of their own into models: with ours, they are refused."""

import json
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaConfig  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

from hyla.integrations.transformers import HylaConfig, register  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


def saved(tmp_path, attention: str):
    """Save a tiny Llama, and return its folder."""
    register()
    config = LlamaConfig(**SIZES, num_key_value_heads=2)
    AutoModelForCausalLM.from_config(config, attn_implementation=attention).save_pretrained(
        tmp_path / attention
    )
    return tmp_path / attention


def architectures(folder) -> list[str]:
    return json.loads((folder / "config.json").read_text())["architectures"]


@pytest.fixture(params=["vllm", "sglang"])
def serve(request, monkeypatch):
    """Load a config and make its model as the transformers backends of the servers do."""

    def attend(*args, **kwargs):
        raise AssertionError("a server's attention was called")

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, request.param, attend)

    def make(folder):
        config = AutoConfig.from_pretrained(folder)
        config._attn_implementation = request.param
        return AutoModel.from_config(config)

    return make


def test_no_server_and_no_transformers_knows_the_saved_architecture(tmp_path):
    """Both look the name up among their own models, then in transformers, and raise with it."""
    (name,) = architectures(saved(tmp_path, "hyla"))
    assert not hasattr(transformers, name)
    assert name.startswith("LlamaForCausalLM with attention of hyla")
    assert "run it by transformers itself (docs/serving.md" in name


def test_transformers_loads_it_all_the_same(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(saved(tmp_path, "hyla"))
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config._attn_implementation == "hyla"
    again = tmp_path / "again"
    model.save_pretrained(again)
    assert architectures(again) == architectures(tmp_path / "hyla")
    model.set_attn_implementation("sdpa")
    model.config.save_pretrained(again)
    assert architectures(again) == ["LlamaForCausalLM"]


def test_the_backends_of_servers_are_refused(tmp_path, serve):
    with pytest.raises(ValueError, match="they would compute a softmax instead; run it by"):
        serve(saved(tmp_path, "hyla"))


def test_a_softmax_may_be_served(tmp_path, serve):
    folder = saved(tmp_path, "softmax")
    assert architectures(folder) == ["LlamaForCausalLM"]
    assert serve(folder) is not None


def test_our_own_model_is_refused(tmp_path, serve):
    config = HylaConfig(**SIZES, max_position_embeddings=8)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="HylaModel cannot be served: its weights"):
        serve(tmp_path)

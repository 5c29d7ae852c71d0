"""Initialisation as in the authors' release: statistics, and the same numbers from a seed."""

import math
from typing import Any

import pytest
import torch

from hyla.nn import (
    GeluMlp,
    MixtureOfExperts,
    MultiHeadAttention,
    SwiGlu,
    T5RelativeBias,
    Transformer,
    TransformerConfig,
)


def assert_lecun_normal(weight: torch.Tensor, fan_in: int) -> None:
    std = 1 / math.sqrt(fan_in)
    assert weight.std().item() == pytest.approx(std, rel=0.02)
    assert abs(weight.mean().item()) < 0.02 * std
    # Cut at two standard deviations of the normal before the cut, which is 1.137 times wider.
    assert 2.2 * std < weight.abs().max() <= 2 * std / 0.8796


def test_attention_layer():
    layer = MultiHeadAttention(256, 8, qk_dim=128, v_dim=512, attention="hyla_deep")
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        assert_lecun_normal(projection.weight, projection.in_features)
        assert (projection.bias == 0).all()
    assert layer.value_weight is not None
    assert_lecun_normal(layer.value_weight, 64)


@pytest.mark.parametrize("build", [GeluMlp, SwiGlu], ids=["gelu", "swiglu"])
def test_feed_forward(build):
    layer = build(128, 512)
    assert_lecun_normal(layer.up.weight, 128)
    assert_lecun_normal(layer.down.weight, 512)
    for name, parameter in layer.named_parameters():
        assert not name.endswith("bias") or (parameter == 0).all()


def test_experts():
    layer = MixtureOfExperts(128, 256, num_experts=4, top_k=2)
    assert_lecun_normal(layer.up, 128)
    assert_lecun_normal(layer.down, 256)


def test_relative_bias_table_has_variance_1_over_buckets_and_is_not_cut():
    table = T5RelativeBias(400, num_buckets=64, max_distance=64).table
    assert table.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert table.abs().max() > 3 / 8


def config(**changes) -> TransformerConfig:
    sizes: dict[str, Any] = {
        "input_dim": 64,
        "output_dim": 8,
        "sequence_length": 6,
        "embed_dim": 16,
        "qk_dim": 8,
    }
    sizes |= {"v_dim": 8, "mlp_dim": 32, "num_heads": 4, "num_layers": 2}
    return TransformerConfig(**(sizes | changes))


def test_token_embedding_has_variance_1_over_width():
    model = Transformer(config(inputs="tokens", input_dim=1000, embed_dim=64))
    assert model.embedding.weight.std().item() == pytest.approx(1 / 8, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="vectors"),
        pytest.param({"attention": "hyla_deep"}, id="deep"),
        pytest.param({"feed_forward": "moe", "positions": "rotary"}, id="moe-rotary"),
        pytest.param({"inputs": "tokens", "feed_forward": "swiglu"}, id="tokens-swiglu"),
        pytest.param({"inputs": "tokens", "tied": True, "output_dim": 64}, id="tied"),
    ],
)
def test_reset_parameters_is_a_function_of_the_generator_and_leaves_nothing_out(changes):
    models = [Transformer(config(**changes)) for _ in range(2)]
    for model in models:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(math.nan)
        model.reset_parameters(torch.Generator().manual_seed(7))
    first, second = (model.state_dict() for model in models)
    for name, value in first.items():
        assert torch.isfinite(value).all(), name
        assert torch.equal(value, second[name]), name
    models[0].reset_parameters(torch.Generator().manual_seed(8))
    assert not torch.equal(models[0].head.weight, models[1].head.weight)


def test_reset_with_a_generator_leaves_the_global_one_alone():
    model = Transformer(config())
    before = torch.get_rng_state()
    model.reset_parameters(torch.Generator().manual_seed(7))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("positions", ["t5", "t5_bidirectional", "rotary"])
def test_a_model_made_without_memory_is_complete_after_reset(positions):
    with torch.device("meta"):
        late = Transformer(config(positions=positions))
    late.to_empty(device="cpu")
    for buffer in late.buffers():
        buffer.fill_(-1)  # memory that nobody has written may hold anything
    usual = Transformer(config(positions=positions))
    for model in (late, usual):
        model.reset_parameters(torch.Generator().manual_seed(7))
    x = torch.randn(2, 4, usual.config.input_dim)
    assert torch.equal(late(x), usual(x))

"""Language models: decoder-only transformers by size, and what their sizes come to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hyla._errors import check_choice
from hyla.attention import RECOMMENDED, resolve_spec
from hyla.nn.transformer import Transformer
from hyla.nn.transformer_config import TransformerConfig

# Rotary positions and tied embeddings throughout. `paper` is Table A3, where 64 is a head's size.
DECODERS: Mapping[str, Mapping[str, int]] = {
    "nano": {"num_layers": 2, "embed_dim": 64, "num_heads": 4, "mlp_dim": 256},
    "mini": {"num_layers": 4, "embed_dim": 256, "num_heads": 4, "mlp_dim": 1024},
    "paper": {"num_layers": 6, "embed_dim": 512, "num_heads": 8, "mlp_dim": 2048},
    "small": {"num_layers": 12, "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072},
    "medium": {"num_layers": 24, "embed_dim": 1024, "num_heads": 16, "mlp_dim": 4096},
    "large": {"num_layers": 36, "embed_dim": 1280, "num_heads": 20, "mlp_dim": 5120},
}


def decoder_config(
    size: str, *, vocab_size: int, sequence_length: int, **changes: Any
) -> TransformerConfig:
    """Return the config of a decoder of a named size; `changes` are fields of the config.

    Its attention is the recommended one unless they say otherwise. That is for composition: on text
    `"hyla_residual_minus_rmshead_plus_softmax.rms4"` is better (4.15 instead of 4.65,
    docs/language.md).
    """
    check_choice("size", size, DECODERS)
    fields: dict[str, Any] = {
        "input_dim": vocab_size,
        "output_dim": vocab_size,
        "sequence_length": sequence_length,
        "inputs": "tokens",
        "positions": "rotary",
        "tied": True,
        "causal": True,
        "attention": RECOMMENDED,
        **DECODERS[size],
        **changes,
    }
    heads_together = {"qk_dim": fields["embed_dim"], "v_dim": fields["embed_dim"]}
    return TransformerConfig(**(heads_together | fields))


class ParameterCounts(NamedTuple):
    """How large a model is: "50M" means one of these, and papers do not always say which."""

    total: int
    without_embeddings: int

    def __str__(self) -> str:
        return (
            f"{self.total:,} parameters ({self.without_embeddings:,} without embeddings and logits)"
        )


def count_parameters(model: Transformer) -> ParameterCounts:
    """Count the parameters, those that are tied once."""
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = {*model.embedding.parameters(), *model.head.parameters()}
    return ParameterCounts(total, total - sum(parameter.numel() for parameter in tables))


def training_flops_per_token(config: TransformerConfig) -> float:
    """Floating-point operations of one training step per token: products alone, backward included.

    Every weight of a matrix product takes 2 forward and 4 backward. A query-key pair takes 2 · D
    a head for its score and 2 · Dv for each time the value network is applied: once where it is
    linear, twice with a hidden layer, three times with both. Causal attention counts the pairs that
    attend, half of all. Linear attention has no need of pairs: 2 · D · Dv a head to sum up a key
    and value, and as much to read the sum.
    """
    width = config.width_factor
    embed, mlp = width * config.embed_dim, width * config.mlp_dim
    qk, v = width * config.qk_dim, width * config.v_dim
    matrices = {"gelu": 2, "swiglu": 3, "moe": 2 * config.num_experts}[config.feed_forward]
    own = config.key_heads / config.num_heads  # what keys and values project of their width
    weights = config.num_layers * (embed * (1 + own) * (qk + v) + matrices * embed * mlp)
    weights += embed * config.output_dim
    pairs = config.sequence_length * (0.5 if config.causal else 1.0)
    spec = resolve_spec(config.attention)
    applied = {"hidden": 2, "deep": 2, "residual": 3}.get(spec.value, 1)
    attended = pairs * (qk + applied * v)
    if spec.normalisation == "none" and spec.value == "linear":
        attended = min(attended, 2 * qk * v / (width * config.num_heads))
    return 6 * (weights + config.num_layers * attended)

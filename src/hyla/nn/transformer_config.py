"""The shape of a transformer, checked before anything is built from it."""

from dataclasses import dataclass, field
from typing import Literal

from hyla._errors import check_choice, check_positive
from hyla.attention import AttentionSpec, resolve_spec
from hyla.attention.validation import BACKENDS
from hyla.nn.feed_forward import check_experts
from hyla.nn.multi_head_attention import check_dropout, check_heads, check_key_heads

POSITIONS = ("t5", "t5_bidirectional", "rotary", "none")
FEED_FORWARDS = ("gelu", "swiglu", "moe")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape of a `Transformer`, before the width factor is applied."""

    input_dim: int
    """Size of an input vector, or number of token ids."""
    output_dim: int
    """Number of logits."""
    sequence_length: int
    """Number of buckets and largest distance of the T5 bias."""
    embed_dim: int
    """Size of the residual stream."""
    qk_dim: int
    """Size of queries and keys, all heads together."""
    v_dim: int
    """Size of values, all heads together."""
    mlp_dim: int
    """Hidden size of the feed-forward network."""
    num_heads: int
    """Number of heads: the size of the latent code."""
    num_key_heads: int | None = field(default=None, metadata={"later": True})
    """Heads of the keys and values, a divisor of num_heads, that groups of the queries' heads share
    (grouped-query attention); without it, each has its own."""
    num_layers: int
    """Number of blocks."""
    attention: str | AttentionSpec = "hyla"
    """Preset of the attention family (hyla, softmax, linear, ...), or one with another φ or output:
    hyla.silu, hyla.rms4, hyla.plain16."""
    inputs: Literal["vectors", "tokens"] = "vectors"
    """Whether inputs are vectors [B, T, input_dim] or token ids [B, T]."""
    tied: bool = False
    """Use the token embedding as the output projection."""
    positions: str = "t5"
    """t5 (unidirectional, as the authors'), t5_bidirectional, rotary or none."""
    causal: bool = False
    """Let every position see itself and earlier ones alone."""
    feed_forward: str = "gelu"
    """gelu, swiglu or moe (mixture of experts)."""
    num_experts: int = 4
    """Experts of the mixture."""
    top_k: int = 2
    """Experts that each token is routed to."""
    width_factor: int = 1
    """Multiplies embedding, qk, v, MLP and the numbers of heads; heads keep their size."""
    attention_dropout: float = 0.0
    """Rate at which query-key pairs are dropped in training, for all heads at once."""
    backend: str = "auto"
    """What computes attention: auto, reference or fused."""

    def __post_init__(self):
        check_positive(
            input_dim=self.input_dim,
            output_dim=self.output_dim,
            sequence_length=self.sequence_length,
            embed_dim=self.embed_dim,
            qk_dim=self.qk_dim,
            v_dim=self.v_dim,
            mlp_dim=self.mlp_dim,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            width_factor=self.width_factor,
        )
        check_heads(self.num_heads, qk_dim=self.qk_dim, v_dim=self.v_dim)
        check_key_heads(self.num_heads, self.key_heads)
        if self.num_key_heads == self.num_heads:  # the same network, and so the same name
            object.__setattr__(self, "num_key_heads", None)
        check_dropout(attention_dropout=self.attention_dropout)
        resolve_spec(self.attention)
        for name, options in (
            ("positions", POSITIONS),
            ("feed_forward", FEED_FORWARDS),
            ("backend", BACKENDS),
        ):
            check_choice(name, getattr(self, name), options)
        if self.feed_forward == "moe":
            check_experts(num_experts=self.num_experts, top_k=self.top_k)
        if self.positions == "rotary" and self.qk_dim // self.num_heads % 2:
            raise ValueError(
                "rotary positions need an even head size, got "
                f"qk_dim={self.qk_dim} / num_heads={self.num_heads}"
            )
        if self.positions == "t5_bidirectional" and self.sequence_length % 2:
            raise ValueError(
                "t5_bidirectional positions need an even sequence_length, got "
                f"{self.sequence_length}"
            )
        if self.inputs not in ("vectors", "tokens"):
            raise ValueError(f"inputs must be 'vectors' or 'tokens', got {self.inputs!r}")
        if self.tied and (self.inputs != "tokens" or self.input_dim != self.output_dim):
            raise ValueError(
                "tied needs inputs='tokens' and output_dim equal to input_dim, got "
                f"inputs={self.inputs!r}, input_dim={self.input_dim}, output_dim={self.output_dim}"
            )

    @property
    def key_heads(self) -> int:
        """Heads of the keys and values, before the width factor: `num_heads` unless they share."""
        return self.num_heads if self.num_key_heads is None else self.num_key_heads

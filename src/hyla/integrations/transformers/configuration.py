"""`HylaConfig`: our decoder in the terms of transformers."""

from typing import Any

from transformers import PreTrainedConfig

from hyla.nn import TransformerConfig


class HylaConfig(PreTrainedConfig):
    """Shape of a `HylaForCausalLM`; the defaults are the paper's language model (Table A3)."""

    model_type = "hyla"
    keys_to_ignore_at_inference = ("past_key_values",)

    vocab_size: int = 32_000
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    attention: str = "hyla"
    feed_forward: str = "gelu"
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = 2
    eos_token_id: int | None = 2

    def to_transformer_config(self) -> TransformerConfig:
        """Return the config of the `Transformer` inside."""
        return TransformerConfig(
            input_dim=self.vocab_size,
            output_dim=self.vocab_size,
            sequence_length=self.max_position_embeddings,
            embed_dim=self.hidden_size,
            qk_dim=self.hidden_size,
            v_dim=self.hidden_size,
            mlp_dim=self.intermediate_size,
            num_heads=self.num_attention_heads,
            num_layers=self.num_hidden_layers,
            attention=self.attention,
            feed_forward=self.feed_forward,
            inputs="tokens",
            positions="rotary",
            tied=self.tie_word_embeddings,
            causal=True,
        )

    @classmethod
    def from_transformer_config(cls, config: TransformerConfig, **more: Any) -> "HylaConfig":
        """Return the config of a `Transformer` trained elsewhere; `more` are fields of this one."""
        if not isinstance(config.attention, str):
            raise ValueError("HylaConfig names attention as a preset, it holds no AttentionSpec")
        made = cls(
            vocab_size=config.input_dim,
            hidden_size=config.embed_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.mlp_dim,
            max_position_embeddings=config.sequence_length,
            attention=config.attention,
            feed_forward=config.feed_forward,
            tie_word_embeddings=config.tied,
            **more,
        )
        if made.to_transformer_config() != config:
            raise ValueError(
                "HylaConfig describes causal decoders of tokens with rotary positions, and heads "
                f"that are together as wide as the embedding; got {config}"
            )
        return made

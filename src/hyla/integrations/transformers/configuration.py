"""`HylaConfig`: our decoder in the terms of transformers."""

import difflib
from typing import Any

from transformers import PreTrainedConfig

from hyla.attention import RECOMMENDED
from hyla.nn import TransformerConfig

# What `TransformerConfig` calls the fields of `HylaConfig` that make up a model.
_FIELDS = {
    "input_dim": "vocab_size",
    "embed_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_key_heads": "num_key_value_heads",
    "mlp_dim": "intermediate_size",
    "sequence_length": "max_position_embeddings",
    "attention": "attention",
    "feed_forward": "feed_forward",
    "tied": "tie_word_embeddings",
}


class HylaConfig(PreTrainedConfig):
    """Shape of a `HylaForCausalLM`.

    The defaults are the paper's language model (Table A3) with the recommended attention, which is
    for composition: `"hyla_residual_minus_rmshead_plus_softmax.rms4"` is better on text (4.15
    instead of 4.65, docs/language.md), and `"hyla"` is the paper's.
    """

    model_type = "hyla"
    keys_to_ignore_at_inference = ("past_key_values",)

    vocab_size: int = 32_000
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    attention: str = RECOMMENDED
    feed_forward: str = "gelu"
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = 2
    eos_token_id: int | None = 2
    pad_token_id: int | None = None

    def __post_init__(self, **more: Any):
        """Say how many key heads there are; refuse what looks like a wrong name of a field.

        transformers keeps any other name, without effect: configs carry things along.
        """
        meant = {name: name for name in _FIELDS.values()} | _FIELDS
        for name in more:
            close = difflib.get_close_matches(name, meant, n=1, cutoff=0.75)
            if close:
                raise TypeError(
                    f"HylaConfig has no field {name!r} (did you mean {meant[close[0]]!r}?)"
                )
        if self.num_key_value_heads is None:  # other tools read a number there
            self.num_key_value_heads = self.num_attention_heads
        super().__post_init__(**more)

    def to_transformer_config(self) -> TransformerConfig:
        """Return the config of the `Transformer` inside."""
        own = {name: getattr(self, field) for name, field in _FIELDS.items()}
        return TransformerConfig(
            **own,
            output_dim=self.vocab_size,
            qk_dim=self.hidden_size,
            v_dim=self.hidden_size,
            inputs="tokens",
            positions="rotary",
            causal=True,
        )

    @classmethod
    def from_transformer_config(cls, config: TransformerConfig, **more: Any) -> "HylaConfig":
        """Return the config of a `Transformer` trained elsewhere; `more` are fields of this one."""
        if not isinstance(config.attention, str):
            raise ValueError("HylaConfig names attention as a preset, it holds no AttentionSpec")
        own = {field: getattr(config, name) for name, field in _FIELDS.items()}
        made = cls(**own, **more)
        if made.to_transformer_config() != config:
            raise ValueError(
                "HylaConfig describes causal decoders of tokens with rotary positions, and heads "
                f"that are together as wide as the embedding; got {config}"
            )
        return made

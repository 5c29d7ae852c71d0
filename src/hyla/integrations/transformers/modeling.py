"""`HylaForCausalLM`: our decoder as a model of transformers, with its cache, `generate`, `Trainer`.

The parameters are those of `hyla.nn.Transformer` under ``transformer.``, so weights go both ways.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import logging

from hyla.integrations.transformers.additive import attended_pairs
from hyla.integrations.transformers.configuration import HylaConfig
from hyla.integrations.transformers.serving import ADVICE, SERVERS
from hyla.nn import KeyValueCache, Transformer

_logger = logging.get_logger(__name__)


class HylaModel(PreTrainedModel):
    """The decoder without its logits."""

    config: HylaConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = HylaConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    # Where the embeddings are not tied, these load the head too: it is a part of the transformer.
    _tied_weights_keys = {"transformer.head.weight": "transformer.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: HylaConfig):
        super().__init__(config)
        self.gradient_checkpointing = False
        self.transformer = Transformer(config.to_transformer_config())
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as `hyla.nn` does; called for every module, of which one holds all others."""
        if isinstance(module, Transformer):
            module.reset_parameters()

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """Refuse all names but the one that stands for a model's own attention, as ours is."""
        if requested_attention in SERVERS and self.config.attention != "softmax":
            raise ValueError(f"{type(self).__name__} cannot be served: {ADVICE}")
        if requested_attention not in (None, "eager"):
            raise ValueError(
                f"{type(self).__name__} attends by what its config calls attention, which is "
                f"{self.config.attention!r}, and attn_implementation={requested_attention!r} would "
                "have no effect: leave it out. A model of another kind is made, and trained, with "
                "HylaConfig(attention=...)."
            )
        return super().get_correct_attn_implementation("eager", is_init_check)

    def set_attn_implementation(
        self, attn_implementation: str | dict, allow_all_kernels: bool = False
    ) -> None:
        """Refuse all names but "eager", of which transformers would change nothing."""
        for name in (
            attn_implementation.values()
            if isinstance(attn_implementation, dict)
            else [attn_implementation]
        ):
            self.get_correct_attn_implementation(name)

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.transformer.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.transformer.embedding = value  # pyright: ignore[reportAttributeAccessIssue]

    def get_output_embeddings(self) -> nn.Linear:
        """The layer that makes the logits."""
        return self.transformer.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the layer that makes the logits."""
        self.transformer.head = new_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **more: Any,
    ) -> BaseModelOutputWithPast | tuple:
        """Return the hidden states that the logits are made from [B, T, hidden_size]."""
        _refuse_unsupported(self.config, more, attention_mask)
        hidden, cache = self.hidden_states(input_ids, attention_mask, past_key_values, use_cache)
        output = BaseModelOutputWithPast(hidden, cache)  # pyright: ignore[reportArgumentType]
        return output if return_dict is not False else output.to_tuple()

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache | None,
        use_cache: bool | None,
    ) -> tuple[Tensor, Cache | None]:
        """Run the blocks; `attention_mask` [B, keys] is 1 for tokens and 0 for padding.

        A mask of pairs [B, 1, queries, keys] is taken as well, on top of causality. Positions are
        relative, so that padding on the left needs no position ids.
        """
        # Without gradients, as in `generate`, nothing is computed again.
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and recompute:
            _logger.warning_once("gradient checkpointing takes no cache: use_cache is set to False")
            use_cache = False
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        layers = None
        if past_key_values is not None:
            layers = [_Layer(past_key_values, i) for i in range(self.config.num_hidden_layers)]
        mask = None
        if attention_mask is not None:
            if attention_mask.ndim == 2:
                mask = attention_mask[:, None, None, :].bool()
            else:  # `generate` makes pairwise masks for static caches
                mask = attended_pairs(attention_mask)
            # Those have room for tokens to come.
            mask = mask[..., : input_ids.shape[1] + (0 if layers is None else layers[0].length)]
        hidden = self.transformer.features(input_ids, mask=mask, cache=layers, recompute=recompute)
        return hidden, past_key_values


class HylaForCausalLM(HylaModel, GenerationMixin):
    """The decoder with its logits."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **more: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """Return logits [B, T, vocab_size] and, with `labels`, the mean loss of the next tokens."""
        _refuse_unsupported(self.config, more, attention_mask)
        hidden, cache = self.hidden_states(input_ids, attention_mask, past_key_values, use_cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.transformer.head(hidden[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **more
            )
        output = CausalLMOutputWithPast(loss, logits, cache)  # pyright: ignore[reportArgumentType]
        return output if return_dict is not False else output.to_tuple()

    @classmethod
    def from_transformer(cls, transformer: Transformer, **config: Any) -> "HylaForCausalLM":
        """Return a copy of a trained decoder; `config` are more fields of its `HylaConfig`."""
        model = cls(HylaConfig.from_transformer_config(transformer.config, **config))
        model.transformer.load_state_dict(transformer.state_dict())
        return model


def _refuse_unsupported(
    config: HylaConfig, arguments: Mapping[str, Any], attention_mask: Tensor | None
) -> None:
    """Raise a ValueError for what other models honour and this one would ignore."""
    for name in ("output_attentions", "output_hidden_states"):
        if arguments.get(name) or getattr(config, name, False):
            raise ValueError(
                f"HylaModel does not know {name}; hyla.latents.record_codes(model, tokens) records "
                "latent codes, and a forward hook on a block of model.transformer.blocks the rest"
            )
    positions = arguments.get("position_ids")
    if positions is None or torch.compiler.is_compiling():
        return
    anew = positions.diff() != 1
    if attention_mask is not None:
        if attention_mask.shape[1:] != positions.shape[-1:]:
            return  # of pairs, which keep apart what they like; or with keys of a cache
        real = attention_mask.bool()  # the positions of padding mean nothing
        highest = torch.where(real, positions, -1).cummax(-1).values
        anew = anew & real[:, :-1] | (positions[..., 1:] <= highest[..., :-1])
        anew = anew & real[:, 1:]
    if anew.any():
        raise ValueError(
            "position_ids that start anew mean packed sequences, which HylaModel does not keep "
            "apart; pad them instead, one sequence a row, and let attention_mask be 0 there"
        )


class _Layer(KeyValueCache):
    """One layer of a cache of transformers, in the place of our own."""

    def __init__(self, cache: Cache, index: int):
        self._cache = cache
        self._index = index

    @property
    def length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Tokens stored so far."""
        return int(self._cache.get_seq_length(self._index))

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new tokens and return all keys and values so far."""
        stored = self._cache.update(keys.transpose(1, 2), values.transpose(1, 2), self._index)
        # A static cache returns the room for tokens to come as well.
        keys, values = (x[:, :, : self.length].transpose(1, 2) for x in stored)
        return keys, values


AutoConfig.register("hyla", HylaConfig, exist_ok=True)
AutoModel.register(HylaConfig, HylaModel, exist_ok=True)
AutoModelForCausalLM.register(HylaConfig, HylaForCausalLM, exist_ok=True)

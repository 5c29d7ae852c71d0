"""A model under another name for a while: its own eager attention, or a function in its place."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from hyla.integrations.transformers.masks import flag_of
from hyla.integrations.transformers.proof import AttentionFunction, registered


def configs_of_ours(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Return the configs in a model, parts included, that have a registered name."""
    waiting = [getattr(module, "config", None) for module in model.modules()]
    found: dict[int, PreTrainedConfig] = {}
    while waiting:
        config = waiting.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, part, None) for part in config.sub_configs]
    return [config for config in found.values() if config._attn_implementation in registered]


@contextlib.contextmanager
def instead_of_ours(
    model: PreTrainedModel, own: str = "eager", function: AttentionFunction | None = None
) -> Iterator[None]:
    """Give the model attention of transformers' `own` where it has ours, or `function` for that.

    Everything else is then as under that name, the masks above all.
    """
    configs = [(config, config._attn_implementation) for config in configs_of_ours(model)]
    mapping = AttentionInterface._global_mapping
    before = mapping.get(own)
    for config, _ in configs:
        config._attn_implementation_internal = own
    if function is not None:
        mapping[own] = function
    try:
        yield
    finally:
        for config, name in configs:
            config._attn_implementation_internal = name
        if before is None:  # "eager" is what models have without any function
            mapping.pop(own, None)
        else:
            mapping[own] = before


@contextlib.contextmanager
def ours_replaced(model: PreTrainedModel, function: AttentionFunction) -> Iterator[None]:
    """Let `function` be called where the model calls ours, with the same arguments."""
    mapping = AttentionInterface._global_mapping
    names = {str(config._attn_implementation) for config in configs_of_ours(model)}
    before = {name: mapping[name] for name in names}
    mapping |= dict.fromkeys(before, function)
    try:
        yield
    finally:
        mapping |= before


def with_masks_alone(function: AttentionFunction, own: str = "eager") -> AttentionFunction:
    """Return `function` with a mask in every call, by what a missing one means to `own`."""

    def call(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *,
        is_causal: bool | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        more.pop("sliding_window", None)
        if attention_mask is None:
            shape = (len(query), 1, query.shape[2], key.shape[2])
            attention_mask = torch.ones(shape, dtype=torch.bool, device=query.device)
            if own == "sdpa" and query.shape[2] > 1 and flag_of(module, is_causal):
                attention_mask = attention_mask.tril()
        return function(module, query, key, value, attention_mask, **more)

    return call

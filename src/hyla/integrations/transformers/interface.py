"""Attention functions under a name of `attn_implementation`.

transformers looks a name up in two places, one for attention and one for masks. Registered in the
first alone, a name would attend without any mask: causality vanishes silently. So
`register_attention` fills both places, and sees to it that models do as they are told (`proof`).
"""

import functools
from collections.abc import Callable
from typing import Any

from hyla._optional import needed

with needed("transformers", "hyla.integrations.transformers needs transformers"):
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from hyla.integrations.transformers.masks import pair_mask
from hyla.integrations.transformers.proof import (
    AttentionFunction,
    expect_calls,
    ignored,
    registered,
    watched,
)
from hyla.integrations.transformers.saving import save_names
from hyla.integrations.transformers.serving import refuse_servers
from hyla.integrations.transformers.sources import may_use_interface


def register_attention(name: str, function: AttentionFunction) -> None:
    """Make `attn_implementation=name` call `function`, in every model that uses the interface.

    `function(module, query, key, value, attention_mask, *, dropout, scaling, **more)` gets queries
    [B, H, Q, D], and keys and values [B, Hkv, K, D] as they are before a grouped query's heads are
    repeated. The mask is boolean, True = attend, or None where `is_causal=` says it all; models
    that make masks of their own give additive ones. It returns the output [B, Q, H, Dv] and weights
    or None.

    A model that was given the name and attends by something else, as a whole or in part, raises
    `InterfaceIgnoredError` in its first forward pass. The name is written to the model's
    config.json, from which transformers applies it again on loading.
    """
    AttentionInterface.register(name, watched(function))
    AttentionMaskInterface.register(name, pair_mask)
    if not registered:
        _follow_names()
        save_names()
    registered.add(name)


def register_on_request(register: Callable[[str], None]) -> None:
    """Have `register` called with every name that a model is given, before it is looked up."""
    if register not in _on_request:
        _on_request.append(register)


_on_request: list[Callable[[str], None]] = []


def _follow_names() -> None:
    """See every name that a model is given.

    transformers has no hook for that; this method is where each model, at its creation and at
    `set_attn_implementation`, has its name checked.
    """
    check = PreTrainedModel.get_correct_attn_implementation

    @functools.wraps(check)
    def checked(
        self: PreTrainedModel, requested_attention: str | None, *args: Any, **kwargs: Any
    ) -> str:
        if requested_attention is not None:
            for register in _on_request:
                register(requested_attention)
        name, model = check(self, requested_attention, *args, **kwargs), self
        refuse_servers(model.config, name)
        if name in registered:
            if not may_use_interface(model):
                raise ignored(model, name)
            expect_calls(model)
        return name

    PreTrainedModel.get_correct_attn_implementation = checked

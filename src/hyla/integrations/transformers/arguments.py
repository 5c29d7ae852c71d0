"""What models hand to an attention function, in the terms of `hyla.attention`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hyla.attention.paths.chunking import and_causal
from hyla.integrations.transformers.additive import looked_at_once, read_additive

# Arguments that change what attention computes, and that the family has no counterpart for.
_REFUSED = {
    "s_aux": "attention sinks, which are an extra logit of a softmax",
    "indices": "a sparse choice of keys",
    "block_indices": "a sparse choice of blocks of keys",
    "cache": "a paged cache (continuous batching)",
}


class Pairs(NamedTuple):
    """Which query-key pairs attend, and what is added to their scores."""

    mask: Tensor | None  # boolean, True = attend, broadcasts to [B, H, Q, K]
    bias: Tensor | None
    causal: bool
    num_keys: int  # a static cache hands over room for keys that are still to come


def refuse_unsupported(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise a ValueError for arguments that would have to be ignored."""
    for key, what in _REFUSED.items():
        if arguments.get(key) is not None:
            raise ValueError(
                f"attn_implementation={name!r} cannot honour {key}: {what}. "
                "Use an implementation of transformers' own for this model, such as 'eager'."
            )


def in_our_layout(
    query: Tensor, key: Tensor, value: Tensor, pairs: Pairs
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q [B, T, H, D], and k and v with their own number of heads, without keys to come."""
    k, v = (x[:, :, : pairs.num_keys].transpose(1, 2) for x in (key, value))
    return query.transpose(1, 2), k, v


def read_pairs(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    *,
    is_causal: bool | None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
) -> Pairs:
    """Say which pairs attend, from a mask and what the model says besides."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and num_queries > 1
        if causal and num_keys > num_queries:
            num_keys = num_queries  # without a mask, only an empty static cache gives more
        if sliding_window is not None and num_keys > sliding_window:
            raise ValueError(
                f"{type(module).__name__} asks for a sliding window of {sliding_window} over "
                f"{num_keys} keys but gives no mask that has it; use 'sdpa' or 'eager'"
            )
        bias = None if position_bias is None else position_bias[..., :num_keys]
        return Pairs(None, bias, causal=causal, num_keys=num_keys)
    mask, bias = attention_mask, position_bias
    if mask.shape[-1] > num_keys:  # no slice where none is needed: masks are known by identity
        mask = mask[..., :num_keys]
    if mask.dtype != torch.bool:
        mask, added = read_additive(mask)
        if added is not None:
            bias = added if bias is None else bias + added
    padding = _padding_behind(mask, query, key)
    if padding is not None:
        return Pairs(padding, bias, causal=True, num_keys=num_keys)
    return Pairs(mask, bias, causal=False, num_keys=num_keys)


def _padding_behind(mask: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
    """Return key padding [B, 1, 1, K] if the mask is no more than that and causality; else None.

    Kernels compute with causality and key padding, and with no other masks.
    """
    if mask.dtype != torch.bool or torch.compiler.is_compiling():
        return None
    num_queries, num_keys = query.shape[2], key.shape[2]
    if mask.shape[-2:] != (num_queries, num_keys) or mask.shape[1] != 1:
        return None
    if num_queries == 1:  # sees all that is not padding; when decoding, every layer comes here
        return mask
    return _padding_beside_causality(mask, query.transpose(1, 2), key.transpose(1, 2))


@looked_at_once
def _padding_beside_causality(mask: Tensor, q: Tensor, k: Tensor) -> Tensor | None:
    # The last query sees every key that is not padding. Not a view: it would keep the mask alive.
    padding = mask[:, :, -1:].clone()
    same = and_causal(padding, q, k, k.shape[1] - q.shape[1]).equal(mask)
    return padding if same else None

"""The attention family as a kernel of the Hugging Face hub: `attn_implementation="OWNER/REPO"`.

transformers calls what such a kernel names `flash_attn_forward`, and may leave masks out that a
flag of the layer implies. So causality and padding are applied here. Which member of the family
attends is what the model's config calls `hyla_attention`, `RECOMMENDED` without.

`tools/kernel_package.py` makes a package of this module and `hyla.attention`, which may import
torch, the standard library and each other, and nothing else.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hyla.attention import RECOMMENDED, attention, explain, packed_attention, resolve_spec
from hyla.integrations.transformers.arguments import (
    in_our_layout,
    read_pairs,
    refuse_unsupported,
)

__all__ = [
    "RECOMMENDED",
    "attention",
    "explain",
    "flash_attn_forward",
    "packed_attention",
    "supports_flash_attn",
]

_FIELD = "hyla_attention"


def supports_flash_attn(*_: Any) -> bool:
    """Say that there is a `flash_attn_forward`: transformers looks for both."""
    return True


def flash_attn_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend from queries [B, H, Q, D] to keys and values [B, Hkv, K, D]; returns [B, Q, H, D].

    The mask is boolean, True = attend: of pairs [B, 1, Q, K], or of padding [B, K] beside the
    layer's causality; None leaves the latter alone.
    """
    name = getattr(getattr(module, "config", None), _FIELD, RECOMMENDED)
    refuse_unsupported(name, more)
    _refuse(query, key, attention_mask, more)
    padding = None
    if attention_mask is not None and attention_mask.ndim == 2:
        padding, attention_mask = attention_mask[:, None, None, :].bool(), None
    pairs = read_pairs(
        module,
        query,
        key,
        attention_mask,
        is_causal=is_causal,
        position_bias=position_bias,
        sliding_window=sliding_window,
    )
    out = attention(
        *in_our_layout(query, key, value, pairs),
        attention=resolve_spec(name),
        bias=pairs.bias,
        mask=pairs.mask if padding is None else padding,
        causal=pairs.causal,
        scale=scaling,
    )
    return out.contiguous(), None


def _refuse(query: Tensor, key: Tensor, mask: Tensor | None, more: dict[str, Any]) -> None:
    """Raise a ValueError for what would have to be ignored, or guessed."""
    batch, (num_queries, num_keys) = len(key), (query.shape[2], key.shape[2])
    if mask is not None and mask.ndim == 2 and mask.shape != (batch, num_keys):
        raise ValueError(
            f"a mask of padding must be [batch, keys] = {[batch, num_keys]}, got {list(mask.shape)}"
        )
    unknown = {
        "attention dropout": bool(more.get("dropout")),
        "softcap": more.get("softcap") is not None,
        "packed sequences": _is_packed(query, mask, more),
        f"{num_queries} queries before {num_keys} keys without a mask of pairs": (
            (mask is None or mask.ndim == 2) and 1 < num_queries < num_keys
        ),
    }
    for what, asked in unknown.items():
        if asked:
            raise ValueError(
                f"the kernel hyla-attention cannot honour {what}; attn_implementation='hyla' of "
                "hyla.integrations.transformers.register() can, or says why not"
            )


def _is_packed(query: Tensor, mask: Tensor | None, more: dict[str, Any]) -> bool:
    if more.get("cu_seq_lens_q") is not None:
        return True
    positions = more.get("position_ids")
    if positions is None or mask is not None or torch.compiler.is_compiling():
        return False
    return positions.ndim == 2 and query.shape[2] > 1 and bool((positions.diff() != 1).any())

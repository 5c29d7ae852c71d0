"""Members of the attention family under a name of `attn_implementation`: codes, and their edits."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hyla.attention.api import without_masked_keys
from hyla.attention.paths.chunking import and_causal
from hyla.attention.reference import value_network
from hyla.integrations.transformers.arguments import read_pairs, repeat_heads
from hyla.integrations.transformers.masks import is_causal_without_mask
from hyla.integrations.transformers.presets import registered_specs


def attend_by(
    name: str, module: nn.Module, *tensors: Any, **options: Any
) -> tuple[Float[Tensor, "B Tq H D"], Float[Tensor, "B H Tq Tk"]]:
    """Attend by the function that is registered under `name`; return output and code."""
    options |= {"output_attentions": True}
    return ALL_ATTENTION_FUNCTIONS[name](module, *tensors, **options)


def attend_with_code(
    name: str,
    code: Float[Tensor, "B H Tq Tk"],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool | None = None,
    **options: Any,
) -> Float[Tensor, "B Tq H D"]:
    """Return what the attention of this name makes of another code."""
    if mask is None:
        is_causal = is_causal_without_mask(module, is_causal)
    pairs = read_pairs(module, query, key, mask, is_causal=is_causal)
    k, v = (repeat_heads(x[:, :, : pairs.num_keys], query).transpose(1, 2) for x in (key, value))
    attended = pairs.mask
    if attended is not None:
        _, v = without_masked_keys(k, v, attended)
    if pairs.causal:
        attended = and_causal(attended, query.transpose(1, 2), k, k.shape[1] - query.shape[2])
    wide = code.to(torch.promote_types(code.dtype, torch.float32))
    out = value_network(wide, v, spec=registered_specs[name], mask=attended)
    return out.to(query.dtype).contiguous()

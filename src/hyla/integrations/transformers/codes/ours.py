"""Members of the attention family under a name of `attn_implementation`: codes, and their edits."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hyla.attention import api
from hyla.integrations.transformers.arguments import in_our_layout, read_pairs
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
    q, k, v = in_our_layout(query, key, value, pairs)
    spec = registered_specs[name]
    out = api.attend_with_code(code, q, k, v, spec=spec, mask=pairs.mask, causal=pairs.causal)
    return out.contiguous()

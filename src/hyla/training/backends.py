"""Who would compute the attention of a model, before there is one."""

import torch

from hyla.attention import resolve_spec
from hyla.attention.dispatch import Path, choose_path
from hyla.nn import TransformerConfig
from hyla.training.precision import autocast_dtype


def fused_path(
    model: TransformerConfig, tokens: int, *, device: torch.device | str, precision: str = "float32"
) -> Path | str:
    """Return what backend "fused" takes for sequences of so many tokens, or why there is nothing.

    Nothing is computed.
    """
    dtype = autocast_dtype(precision) or torch.float32
    # A factor makes heads more, and not wider.
    heads, key_heads = (model.width_factor * n for n in (model.num_heads, model.key_heads))
    qk_width, v_width = (x // model.num_heads for x in (model.qk_dim, model.v_dim))

    def unread(heads: int, width: int) -> torch.Tensor:
        return torch.empty(1, dtype=dtype, device=device).expand(1, tokens, heads, width)

    q, k, v = unread(heads, qk_width), unread(key_heads, qk_width), unread(key_heads, v_width)
    spec = resolve_spec(model.attention)
    return choose_path(q, k, v, spec=spec, scale=1.0, eps=1e-6, causal=model.causal)


def check_fused(
    model: TransformerConfig, tokens: int, *, device: torch.device, precision: str
) -> None:
    """Raise a ValueError with the reason if backend "fused" could not compute the attention here.

    On a GPU every call is asked by itself: its kernels know which of them they can take.
    """
    if device.type == "cuda":
        return
    path = fused_path(model, tokens, device=device, precision=precision)
    if isinstance(path, str):
        raise ValueError(f"backend 'fused' cannot compute this on {device}: {path}; use 'auto'")

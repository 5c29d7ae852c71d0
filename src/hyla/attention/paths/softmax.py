"""Softmax attention by PyTorch's own fused kernels."""

import torch.nn.functional as F
from torch import Tensor

from hyla.attention.distance import DistanceBias
from hyla.attention.kernels.gradients import why_not_forward_mode

# Smaller heads are the tasks' little models, which run under vmap, where these kernels do not.
MIN_WIDTH = 32


def why_unsupported(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | DistanceBias | None,
    mask: Tensor | None,
    causal: bool,
) -> str | None:
    """Say why PyTorch's kernels cannot compute this, or return None if they can."""
    if q.shape[-1] < MIN_WIDTH:
        return f"softmax attention is fused for heads of {MIN_WIDTH} and more"
    if bias is not None or mask is not None:
        return "fused softmax attention takes neither a bias nor a mask other than causal"
    if causal and q.shape[1] not in (1, k.shape[1]):
        # Theirs lets the first query see the first key; ours, the last the last.
        return "fused causal softmax takes one query or as many as there are keys"
    return why_not_forward_mode(q, k, v)


def fused_softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float
) -> Tensor:
    """Attend from q [B, Tq, H, D] to k and v [B, Tk, G, D]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = False
    if q.shape[2] <= 1:  # in branches of their own: shapes without numbers give no plain bool
        causal = False
    if q.shape[1] != k.shape[1]:
        grouped = True
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2)

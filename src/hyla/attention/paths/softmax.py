"""Softmax attention by PyTorch's own fused kernels."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention.groups import for_every_head
from hyla.attention.kernels.gradients import why_not_forward_mode
from hyla.attention.paths import linear


def applies(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> bool:
    """Say whether PyTorch's kernels can compute this."""
    # Causal with fewer queries than keys, theirs lets the first query see the first key; ours, the
    # last the last.
    return linear.applies(q, k, v, **options) and why_not_forward_mode(q, k, v) is None


def fused_softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float
) -> Tensor:
    """Attend from q [B, Tq, H, D] to k and v [B, Tk, G, D]."""
    if q.is_cuda and q.dtype == torch.float32:
        # There PyTorch has no kernel for heads that share keys, and would compute all pairs' scores
        # (its pull request 181528 has times); repeated keys are linear in the tokens.
        k, v = (for_every_head(x, q.shape[2]) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = False
    if q.shape[2] <= 1:  # in branches of their own: shapes without numbers give no plain bool
        causal = False
    if q.shape[1] != k.shape[1]:
        grouped = True
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2)

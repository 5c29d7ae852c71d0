"""σ of Eq. 1: how the raw scores of all heads become the latent code.

A normalisation is a function `(scores, mask, eps) -> code` on [..., H, Tq, Tk]. `mask` is None
or a boolean tensor of the same rank, True where the query may attend. A masked pair always
leaves with code 0: its value network is the zero map.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Normalisation = Callable[[Tensor, Tensor | None, float], Tensor]


def none(scores: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """Linear attention: the scores are the code."""
    return scores if mask is None else scores.masked_fill(~mask, 0.0)


def softmax(scores: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """Normalise over the keys, for each head and query. A query with no key gets code 0."""
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # The dtype's minimum and not -inf: a row without any key would otherwise be NaN.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)


def rms_head(scores: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """RMSHead: divide by the root mean square over the heads, for each query-key pair.

    The squares are summed in float32 or better: in half precision they overflow at scores of 256.
    """
    scores = none(scores, mask, eps)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    rms = torch.rsqrt(wide.square().mean(dim=-3, keepdim=True) + eps)
    return (wide * rms).to(scores.dtype)


NORMALISATIONS: Mapping[str, Normalisation] = {
    "none": none,
    "softmax": softmax,
    "rms_head": rms_head,
}

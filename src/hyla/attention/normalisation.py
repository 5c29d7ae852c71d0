"""σ of Eq. 1: how the raw scores of all heads become the latent code.

A normalisation is a function `(scores, mask, eps) -> code` on [..., H, Tq, Tk]. `mask` is None
or a boolean tensor that broadcasts to the scores, True where the query may attend. A masked pair
always leaves with code 0: its value network is the zero map.
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
    return none(torch.softmax(least_where_masked(scores, mask), dim=-1), mask, eps)


def least_where_masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Give masked pairs the dtype's minimum; with -inf, a row without any key would be NaN."""
    return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def rms_head(scores: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """RMSHead: divide by the root mean square over the heads, for each query-key pair.

    The squares are summed in float32 or better: in half precision they overflow at scores of 256.
    Pairs whose squares would overflow even so are scaled down first; all others by exactly 1.
    """
    scores = none(scores, mask, eps)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    limit = torch.finfo(wide.dtype).max ** 0.25
    shrink = (wide.detach().abs().amax(dim=-3, keepdim=True) / limit).clamp(min=1.0)
    wide = wide / shrink
    rms = torch.rsqrt(wide.square().mean(dim=-3, keepdim=True) + eps / shrink.square())
    return (wide * rms).to(scores.dtype)


NORMALISATIONS: Mapping[str, Normalisation] = {
    "none": none,
    "softmax": softmax,
    "rms_head": rms_head,
}

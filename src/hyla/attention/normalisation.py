"""σ of Eq. 1: how the raw scores of all heads become the latent code.

A normalisation is a function `(scores, mask, eps) -> code` on [..., H, Tq, Tk]. `mask` is None
or a boolean tensor that broadcasts to the scores, True where the query may attend. A masked pair
always leaves with code 0: its value network is the zero map.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Normalisation = Callable[[Tensor, Tensor | None, float], Tensor]

# Squares of scores up to 1e24 are then finite, and so is the third power of 1 / sqrt(eps), which
# the gradient needs, down to an eps of 1e-15; what small scores lose is far below eps.
_SHRINK = 2.0**-16


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
    In float32 they would at 1e19, so scores are scaled down first, by a power of two: exactly.
    Where that is not enough, the code is NaN and not 0.
    """
    scores = none(scores, mask, eps)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32)) * _SHRINK
    mean_square = wide.square().mean(dim=-3, keepdim=True)
    overflow = mean_square.detach() * 0  # infinity times 0
    rms = torch.rsqrt(mean_square + overflow + eps * _SHRINK**2)
    return (wide * rms).to(scores.dtype)


NORMALISATIONS: Mapping[str, Normalisation] = {
    "none": none,
    "softmax": softmax,
    "rms_head": rms_head,
}

r"""How large an output is before anything is trained.

At the start queries, keys and values are independent standard normal numbers, near enough, and so
are the scores of a pair in each head. From the first moments of its code $a$ follow those of what
the value network makes of a pair, and from these, with $n$ keys, that of the sum:

$$ \mathrm{E}[o^2] = n\,\mathrm{E}[a^2 z^2] + n(n-1)\,\mathrm{E}[a z]^2 $$

For HYLA that is $n H / 2$: RMSHead leaves every pair with a code of norm $\sqrt H$, and nothing
divides by the number of keys.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hyla.attention.phi import PHIS

if TYPE_CHECKING:
    from hyla.attention.spec import AttentionSpec

Number = float | Tensor


@dataclass(frozen=True)
class CodeMoments:
    """E[a], E[a²] and E[a⁴] of a pair's code in one head."""

    mean: Number
    square: Number
    fourth: Number


STANDARD_NORMAL = CodeMoments(0.0, 1.0, 3.0)


def after_softmax(n: Number) -> CodeMoments:
    """Moments of a softmax over `n` standard normal scores.

    Exact for one key and for many, where exp(score) is log-normal and its sum does not vary.
    """
    square = math.e / (n * (n + math.e - 1))
    kurtosis = math.exp(4) * n / (n + math.exp(4) - 1)
    return CodeMoments(1 / n, square, kurtosis * square**2)


def after_rms_head(code: CodeMoments) -> CodeMoments:
    """RMSHead fixes the norm of each pair's code, so that its squares no longer vary as a whole."""
    return CodeMoments(code.mean / code.square**0.5, 1.0, 1.0)


def expected_deviation(spec: "AttentionSpec", n: Number, heads: int) -> Number:
    """Return the root mean square of an output that sums over `n` keys, at the start."""
    code = STANDARD_NORMAL
    for step in spec.normalisation_steps:
        if step == "softmax":
            code = after_softmax(n)
        elif step == "rms_head":
            code = after_rms_head(code)
    if spec.value == "pooled":
        return _moments(spec.phi, n * code.square)[1] ** 0.5
    # The variance of what a pair's code makes of the values; where a² weighs it, that of pairs
    # with a large code counts for more: E[a²|a|²] / E[a²].
    mean, _ = _value_moments(spec, heads * code.square)
    _, square = _value_moments(spec, code.fourth / code.square + (heads - 1) * code.square)
    variance, drift = n * (code.square * square), code.mean * mean
    # Most codes have a mean of 0, and on a GPU every operation on n is a launch.
    if isinstance(drift, Tensor) or drift:
        variance = variance + n * (n - 1) * drift**2
    return variance**0.5


def _value_moments(spec: "AttentionSpec", mixed: Number) -> tuple[Number, Number]:
    """Return mean and mean square of a value before the outer code weighs it.

    `mixed` is the variance of the values that a code has mixed over the heads.
    """
    if spec.value == "linear":
        return 0.0, 1.0
    if spec.value == "activated":
        return _moments(spec.phi, 1.0)
    mean, square = _moments(spec.phi, mixed)
    if spec.value == "residual":
        return mean, 1 + square
    if spec.value == "deep":
        return _moments(spec.phi, mixed * square)
    return mean, square


def _moments(phi: str | Callable[[Tensor], Tensor], variance: Number) -> tuple[Number, Number]:
    """Return E[φ(x)] and E[φ(x)²] for a normal x of mean 0."""
    if isinstance(variance, Tensor):
        return _integrated(phi, variance)
    return _constant_moments(phi, variance)


@torch.compiler.assume_constant_result  # here: a compiler does not see through a cache
def _constant_moments(
    phi: str | Callable[[Tensor], Tensor], variance: float
) -> tuple[float, float]:
    return _cached_moments(phi, variance)


@lru_cache(maxsize=256)  # of a φ that is made anew for each call, not all
def _cached_moments(phi: str | Callable[[Tensor], Tensor], variance: float) -> tuple[float, float]:
    # In a thread of its own: this one may have the fake tensors of a compiler or of torch.export,
    # and the cache lasts.
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(_integrated_once, phi, variance).result()


def _integrated_once(phi: str | Callable[[Tensor], Tensor], variance: float) -> tuple[float, float]:
    mean, square = _integrated(phi, torch.tensor(variance, dtype=torch.float64))
    return mean.item(), square.item()


def _integrated(phi: str | Callable[[Tensor], Tensor], variance: Tensor) -> tuple[Tensor, Tensor]:
    """Integrate over the density, far enough out and densely enough for any usual φ."""
    x = torch.linspace(-8, 8, 321, dtype=variance.dtype, device=variance.device)
    weight = torch.exp(-0.5 * x.square())
    weight = weight / weight.sum()
    y = (PHIS[phi] if isinstance(phi, str) else phi)(x * variance.sqrt()[..., None])
    return (y * weight).sum(-1), (y.square() * weight).sum(-1)

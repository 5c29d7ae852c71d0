"""Effect sizes with intervals that fit few seeds: Student's t, and Welch's for several groups."""

import functools
import math
from dataclasses import dataclass

import numpy as np

from hyla.results.selection import Estimate

FEWEST_SEEDS = 3
"""Below these there is no telling how far seeds lie apart."""
_NEARLY_NORMAL = 1000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A sum of estimates that a claim says is above 0, and how sure it is."""

    value: float
    error: float
    freedom: float
    """Degrees of freedom of the t distribution that it is judged by."""
    counts: tuple[int, ...]
    """Seeds of each estimate in it, or instances where nothing was trained."""

    @property
    def probability(self) -> float:
        """Of an effect as far from 0 in either direction, were there none in truth."""
        if math.isnan(self.error):
            return 1.0  # of a single seed nothing is known
        if self.error == 0:
            return float(self.value == 0)
        return _tails(self.value / self.error, self.freedom)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the t interval that leaves the truth out with a probability of `level`."""
        half = _quantile(level, self.freedom) * self.error
        return self.value - half, self.value + half

    @property
    def clearness(self) -> tuple[float, float]:
        """What rises with how clearly it is above 0; lowest where something diverged."""
        if math.isnan(self.value):
            return -math.inf, -math.inf
        return math.copysign(1 - self.probability, self.value), self.value


def effect(*terms: tuple[float, Estimate], above: float = 0.0) -> Effect:
    """Return the sum of weighted estimates, less what it must be above.

    Its degrees of freedom are those of Welch and Satterthwaite: n - 1 for a single estimate.
    """
    parts = [(weight * estimate.standard_error) ** 2 for weight, estimate in terms]
    spare = [max(estimate.count - 1, 1) for _, estimate in terms]
    spread = sum(part**2 / free for part, free in zip(parts, spare, strict=True))
    return Effect(
        value=sum(weight * estimate.mean for weight, estimate in terms) - above,
        error=math.sqrt(sum(parts)),
        freedom=sum(parts) ** 2 / spread if spread > 0 else min(spare),
        counts=tuple(estimate.count for _, estimate in terms),
    )


def difference(larger: Estimate, smaller: Estimate) -> Effect:
    """Return by how much the mean of one group of seeds is above that of another."""
    return effect((1, larger), (-1, smaller))


def alike(ours: Estimate, other: Estimate, *, within: float) -> Effect:
    """Return by how much two means are nearer to each other than `within`."""
    nearer = -1 if ours.mean > other.mean else 1
    return effect((nearer, ours), (-nearer, other), above=-within)


def _tails(t: float, freedom: float) -> float:
    """Return the probability that Student's t is as far from 0 as `t`, on either side."""
    if freedom > _NEARLY_NORMAL:
        return math.erfc(abs(t) / math.sqrt(2))
    # With t = sqrt(freedom) cot(x) the density becomes sin(x) ** (freedom - 1), up to a factor.
    end = math.atan2(math.sqrt(freedom), abs(t))
    x = end * (_NODES + 1) / 2
    area = end / 2 * float(_WEIGHTS @ np.sin(x) ** (freedom - 1))
    whole = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)) * math.sqrt(math.pi)
    return min(1.0, 2 * area / whole)


@functools.cache
def _quantile(level: float, freedom: float) -> float:
    """Return the t beyond which, on either side, a share of `level` lies."""
    low, high = 0.0, 1.0
    while _tails(high, freedom) > level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tails(middle, freedom) > level else (low, middle)
    return high

"""How sure a measured number is."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_Z = 1.959964  # of a normal distribution, 95 % lie this many standard deviations around the mean


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def standard_error(self) -> float:
        """The deviation that would make a normal distribution's interval as wide."""
        return (self.high - self.low) / (2 * _Z)


def wilson_interval(hits: int, trials: int) -> Interval:
    """Return a rate with Wilson's interval, which is sensible at 0, at 1 and for few trials."""
    if trials == 0:
        return Interval(math.nan, math.nan, math.nan)
    rate, z2 = hits / trials, _Z**2 / trials
    centre = (rate + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (rate * (1 - rate) + z2 / 4)) / (1 + z2)
    return Interval(rate, centre - half, centre + half)


def bootstrap_intervals(
    statistics: Callable[[np.ndarray], Sequence[float]],
    size: int,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> list[Interval]:
    """Return statistics of a sample, each with its percentile interval over resamples.

    `statistics` is given how often each of the `size` observations occurs.
    """
    random = np.random.default_rng(seed)
    occurrences = random.multinomial(size, np.full(size, 1 / size), size=resamples)
    values = np.array([statistics(times) for times in occurrences])
    lows, highs = np.nanpercentile(values, [2.5, 97.5], axis=0)
    estimates = statistics(np.ones(size, dtype=int))
    return [Interval(*map(float, each)) for each in zip(estimates, lows, highs, strict=True)]

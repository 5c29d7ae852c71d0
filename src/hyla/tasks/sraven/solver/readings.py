"""The readings of one instance, listed: to be looked at, and to say why there are none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from hyla.tasks.splits import Combination
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.rules import RULES
from hyla.tasks.sraven.threads import narrowed, prescriptions, thread_context


class Thread(NamedTuple):
    """One feature of a reading, followed across the columns."""

    positions: tuple[int, ...]
    """Its position in each column; the last is its position in the query panel."""
    rule: str
    """The name of the rule it follows."""
    value: int
    """What the rule prescribes for the query panel."""


class Reading(NamedTuple):
    """One way of understanding an instance: every position of every column in one thread."""

    threads: tuple[Thread, ...]
    """The M threads, by their position in the first column."""
    probability: float
    """The posterior probability of this reading."""

    @property
    def panel(self) -> tuple[int, ...]:
        """The query panel that the reading prescribes, in the order shown."""
        return tuple(t.value for t in sorted(self.threads, key=lambda t: t.positions[-1]))


def fitting_threads(
    panels: Int[Tensor, "rows columns m"], config: SravenConfig, *, permuted: bool
) -> list[Thread]:
    """The threads of one instance that fit a rule, once for each such rule."""
    M, G = config.num_features, config.grid_size
    grids = narrowed(panels.cpu().transpose(0, 1).unsqueeze(-1), num_values=config.num_values)
    context = thread_context(grids, num_values=config.num_values, permuted=permuted)
    shape = (M,) * (G if permuted else 1) + (1,)
    threads = []
    for name, found in zip(config.rules, prescriptions(context, config.rules), strict=True):
        values = found.value.expand(shape)
        for index in found.fits.expand(shape).nonzero().tolist():
            positions = tuple(index[:-1]) if permuted else (index[0],) * G
            threads.append(Thread(positions, name, int(values[tuple(index)])))
    return threads


def list_readings(
    threads: Sequence[Thread], config: SravenConfig, *, combinations: Collection[Combination] | None
) -> list[Reading]:
    """Every way of choosing M threads that do not cross, most probable first."""
    found = [
        (chosen, _log_weight(chosen, config))
        for chosen in _matchings(threads, config.num_features)
        if combinations is None or _combination(chosen, config) in combinations
    ]
    highest = max((weight for _, weight in found), default=0.0)
    total = math.fsum(math.exp(weight - highest) for _, weight in found)
    readings = [Reading(chosen, math.exp(weight - highest) / total) for chosen, weight in found]
    return sorted(readings, key=lambda reading: -reading.probability)


def why_unreadable(threads: Sequence[Thread], config: SravenConfig, *, permuted: bool) -> str:
    """What is wrong with an instance that has these fitting threads, but no reading."""
    rules = ", ".join(config.rules)
    for column in range(config.grid_size):
        reached = {thread.positions[column] for thread in threads}
        missing = sorted(set(range(config.num_features)) - reached)
        if missing and permuted:
            return (
                f"position {missing[0]} of column {column} lies in no sequence across the columns "
                f"that follows one of the rules {rules}"
            )
        if missing:
            return f"feature {missing[0]} follows none of the rules {rules}"
    return (
        "every position lies in some sequence that follows a rule, but no choice of them uses each "
        "position once with a combination of rules that may occur"
    )


def _matchings(
    threads: Sequence[Thread], num_features: int, chosen: tuple[Thread, ...] = ()
) -> Iterator[tuple[Thread, ...]]:
    if len(chosen) == num_features:
        yield chosen
        return
    for thread in threads:
        if thread.positions[0] == len(chosen) and not any(
            a == b
            for other in chosen
            for a, b in zip(thread.positions, other.positions, strict=True)
        ):
            yield from _matchings(threads, num_features, (*chosen, thread))


def _combination(threads: Sequence[Thread], config: SravenConfig) -> Combination:
    return tuple(sorted(config.rules.index(thread.rule) for thread in threads))


def _log_weight(threads: Sequence[Thread], config: SravenConfig) -> float:
    """The logarithm of a reading's probability, up to a constant (see `solver`)."""
    times = Counter(thread.rule for thread in threads)
    orders = sum(math.log(math.factorial(n)) for n in times.values())
    grids = [RULES[t.rule].count(config.num_values, config.grid_size) for t in threads]
    return orders - sum(math.log(count) for count in grids)

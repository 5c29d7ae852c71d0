"""The best perfect matching of threads, in fixed shapes: for samplers, which may be captured."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from jaxtyping import Int, Int64
from torch import Tensor

_MOST_ENTRIES = 10**7  # of a table
_TABLE_ENTRIES = 8  # looked at together, to each of the threads of a working set
_MOST_FEATURES = {torch.int8: 6, torch.int16: 14}  # the product of as many scores of two fits


class _Step(NamedTuple):
    """How the sets of positions used after one more thread come about.

    A state is a set of as many positions in each column after the first. It is reached from each
    state that lacks one of its positions in each column, by the thread through these.
    """

    previous: Int64[Tensor, "states ways"]
    thread: Int64[Tensor, "states ways"]


def _table_entries(num_features: int, num_columns: int) -> int:
    return max(
        (math.comb(num_features, used) * used) ** (num_columns - 1)
        for used in range(1, num_features + 1)
    )


class BestMatching:
    """Finds the largest product of the scores, 0 to 2, of M threads that use every position once.

    A thread is a choice of one position in each of G columns; if the columns are known to show the
    features in the same order, count them as one. Dynamic programming over the sets of positions
    used: the threads through positions 0, 1, ... of the first column are chosen in turn. Every
    shape is known beforehand, and nothing waits for the device.
    """

    dtype: torch.dtype
    """Of the scores."""

    def __init__(
        self, *, num_features: int, num_columns: int, device: torch.device | str = "cpu"
    ) -> None:
        fitting = (kind for kind, most in _MOST_FEATURES.items() if num_features <= most)
        try:
            self.dtype = next(fitting)
        except StopIteration:
            most = max(_MOST_FEATURES.values())
            raise ValueError(
                f"num_features must be at most {most} here, got {num_features}"
            ) from None
        entries = _table_entries(num_features, num_columns)
        if entries > _MOST_ENTRIES:
            fewer = range(num_features, 0, -1)
            fits = (m for m in fewer if _table_entries(m, num_columns) <= _MOST_ENTRIES)
            raise ValueError(
                f"num_features={num_features} and {num_columns} columns need a table of "
                f"{entries:,} entries to match threads in fixed shapes; the most is "
                f"{_MOST_ENTRIES:,}, which {next(fits)} features stay below"
            )
        self._entries = entries
        steps = [_step(num_features, num_columns, used) for used in range(1, num_features + 1)]
        self._steps = [_Step(*(table.to(device) for table in step)) for step in steps]
        self._positions = [num_features] * num_columns

    def instances_together(self, working_set: int) -> int:
        """How many instances to look at together, of as many threads in all as `working_set`.

        Where features are many the tables are far larger than the threads, and set the limit.
        """
        threads = math.prod(self._positions)
        return max(1, min(working_set // threads, _TABLE_ENTRIES * working_set // self._entries))

    def __call__(self, scores: Int[Tensor, "*#positions n"]) -> Int[Tensor, "n"]:
        """The largest products, for N instances.

        `scores` has the position in each column and the instances as its axes; the axis of a column
        that no rule looks at may be 1. Zero means that a thread is excluded.
        """
        scores = scores.expand(*self._positions, -1)
        first, *others, instances = scores.shape
        scores = scores.reshape(first, math.prod(others), instances)
        best = torch.ones_like(scores[0, :1])
        for step, score in zip(self._steps, scores.unbind(0), strict=True):
            best = (best[step.previous] * score[step.thread]).amax(dim=1)
        return best[0]


def _step(num_features: int, num_columns: int, used: int) -> _Step:
    """The step to the states with `used` positions, for all columns after the first at once."""
    smaller = {s: i for i, s in enumerate(itertools.combinations(range(num_features), used - 1))}
    larger = list(itertools.combinations(range(num_features), used))
    # The same for one column: each of its sets comes from one without some position.
    previous = torch.tensor(
        [[smaller[tuple(q for q in s if q != p)] for p in s] for s in larger], dtype=torch.int64
    )
    position = torch.tensor(larger, dtype=torch.int64)
    step = _Step(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64))
    for _ in range(num_columns - 1):
        step = _Step(
            _for_all_pairs(step.previous, len(smaller), previous),
            _for_all_pairs(step.thread, num_features, position),
        )
    return step


def _for_all_pairs(
    table: Int64[Tensor, "s w"], radix: int, other: Int64[Tensor, "t v"]
) -> Int64[Tensor, "st wv"]:
    """Digits of all combinations of the rows, and of the columns, of two tables."""
    combined = table[:, None, :, None] * radix + other[None, :, None, :]
    return combined.flatten(2).flatten(0, 1)

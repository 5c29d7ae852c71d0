"""Which combinations are trained on and which are held out, as a function of the seed."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

Combination = tuple[int, ...]
"""A multiset of constituents, as sorted indices."""

MOST_COMBINATIONS = 1_000_000  # a split lists them all

_MAX_ATTEMPTS = 1000
_MOST_REMEMBERED = 2000


class Split(NamedTuple):
    """Two disjoint sides of a set of combinations."""

    train: tuple[Combination, ...]
    held_out: tuple[Combination, ...]


def split_combinations(
    combinations: Sequence[Combination], *, held_out_fraction: float, seed: int
) -> Split:
    """Hold out a fraction, such that every constituent is still met in training.

    The order comes from the seed alone (SHA-256, so it is the same on every machine and Python).
    A shuffle that would hide a constituent from training is replaced by the next one.
    """
    # A report asks for the same few hundred splits again and again; a large one is not kept.
    split = _remembered if len(combinations) <= _MOST_REMEMBERED else _split
    return split(tuple(combinations), held_out_fraction, seed)


def _split(combinations: tuple[Combination, ...], held_out_fraction: float, seed: int) -> Split:
    if not math.isfinite(held_out_fraction):
        raise ValueError(f"held_out_fraction must be finite, got {held_out_fraction}")
    num_held_out = int(len(combinations) * held_out_fraction)
    num_train = len(combinations) - num_held_out
    if not 0 < num_held_out < len(combinations):
        empty_side = "held-out" if num_held_out <= 0 else "training"
        raise ValueError(
            f"held_out_fraction={held_out_fraction} leaves the {empty_side} side empty: there are "
            f"{len(combinations)} combinations, so {_workable_fractions(len(combinations))}"
        )
    constituents = {c for combination in combinations for c in combination}
    for attempt in range(_MAX_ATTEMPTS):
        shuffled = sorted(combinations, key=lambda c: _order(seed, attempt, c))
        train, held_out = shuffled[:num_train], shuffled[num_train:]
        if {c for combination in train for c in combination} == constituents:
            return Split(tuple(train), tuple(held_out))
    raise ValueError(
        f"held_out_fraction={held_out_fraction} leaves {num_train} of {len(combinations)} "
        f"combinations for training, and none of {_MAX_ATTEMPTS} shuffles showed all "
        f"{len(constituents)} constituents in them; a smaller held_out_fraction would work"
    )


_remembered = functools.lru_cache(maxsize=512)(_split)


def check_listable(number: int, made_of: str) -> None:
    """Raise a ValueError if there are more combinations than a split can list.

    `made_of` says what there is too much of, for example ``3 features and 8 rules``.
    """
    if number > MOST_COMBINATIONS:
        raise ValueError(
            f"{made_of} make {number:,} combinations; a split lists them all, up to "
            f"{MOST_COMBINATIONS:,}: choose fewer"
        )


def _order(seed: int, attempt: int, combination: Combination) -> bytes:
    return hashlib.sha256(f"split/{seed}/{attempt}/{combination}".encode()).digest()


def _workable_fractions(num_combinations: int) -> str:
    if num_combinations < 2:
        return "no fraction works; more constituents would"
    return f"a fraction of at least 1/{num_combinations} and below 1 would work"

"""The rules of SRAVEN (paper, appendix B.3, and two more), as data.

A rule fills the rows of one feature's grid. It is one decorated function and its inverse. The
function receives random draws and returns the grid, as any integers, which the generator reduces
modulo the number of values. The inverse receives all of a grid but its last entry and says whether
the rule could have produced it, and what the last entry would be. The columns are on the leading
axis, so that elementwise work runs over long inner axes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor


class Draws(NamedTuple):
    """What a rule may use; the draws of different rows and features are independent.

    The leading axis, of size G, stands for the columns; one of the others stands for the rows.
    """

    free: Int64[Tensor, "columns *grid"]
    """Independent, uniform values."""
    distinct: Int64[Tensor, "columns *grid"]
    """In each row an independent order of the same G distinct values, drawn once for the grid."""


class Context(NamedTuple):
    """What is shown of many grids: everything but the last entry of the last row."""

    columns: tuple[Int[Tensor, "rows *#grids"], ...]
    """The G columns; the last has one row fewer. They broadcast against each other, so that a rule
    that relates two columns need not look at all combinations of all of them."""
    num_values: int


class Prescription(NamedTuple):
    """What a rule makes of a context; the fields broadcast against each other."""

    fits: Bool[Tensor, "*#grids"]
    """Whether the rule could have produced what is shown."""
    value: Int[Tensor, "*#grids"]
    """The last entry, if so, in [0, K)."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the rows of one feature come about, and how to tell.

    The solver relies on two things: the rule produces each of its grids with the same probability,
    and the last entry of a grid follows from the others.
    """

    name: str
    fill: Callable[[Draws], Int64[Tensor, "columns *grid"]]
    """Turns draws into a grid of integers."""
    inverse: Callable[[Context], Prescription]
    """Recognises a grid without its last entry, and completes it."""
    count: Callable[[int, int], int]
    """Number of distinct grids, from the number of values and the grid size."""
    across_rows: bool = False
    """Whether a row follows from others; else it follows from its own beginning."""


RULES: dict[str, Rule] = {}
"""All rules by name."""


def rule(
    name: str,
    *,
    inverse: Callable[[Context], Prescription],
    count: Callable[[int, int], int],
    across_rows: bool = False,
) -> Callable[[Callable[[Draws], Tensor]], Callable[[Draws], Tensor]]:
    """Register the decorated function as a rule."""

    def register(fill: Callable[[Draws], Tensor]) -> Callable[[Draws], Tensor]:
        if name in RULES and RULES[name].fill.__module__ != fill.__module__:
            raise ValueError(f"there is a rule {name!r} already; give yours another name")
        RULES[name] = Rule(
            name=name, fill=fill, inverse=inverse, count=count, across_rows=across_rows
        )
        return fill

    return register


def _count_one_value_a_row(num_values: int, grid_size: int) -> int:
    return num_values**grid_size


def _count_operands(num_values: int, grid_size: int) -> int:
    return num_values ** (grid_size * (grid_size - 1))


def _count_distribute_three(num_values: int, grid_size: int) -> int:
    return math.comb(num_values, grid_size) * math.factorial(grid_size) ** grid_size


def _register_progression(name: str, step: int) -> None:
    def inverse(context: Context) -> Prescription:
        *before, _ = context.columns
        expected = [(column + step).remainder(context.num_values) for column in before]
        fits = every(map(_agrees, expected, context.columns[1:]))
        return Prescription(fits, expected[-1][-1])

    @rule(name, inverse=inverse, count=_count_one_value_a_row)
    def progression(draws: Draws) -> Int64[Tensor, "columns *grid"]:
        steps = step * torch.arange(draws.free.shape[0], device=draws.free.device)
        return draws.free[:1] + steps.view(-1, *[1] * (draws.free.ndim - 1))


_register_progression("constant", 0)
for _step in (+1, +2, -1, -2):
    _register_progression(f"progression{_step:+d}", _step)


def _register_operation(name: str, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A rule whose last column combines the others, which are free, from left to right."""

    def inverse(context: Context) -> Prescription:
        *operands, last = context.columns
        result = functools.reduce(combine, operands).remainder(context.num_values)
        return Prescription(_agrees(result, last), result[-1])

    @rule(name, inverse=inverse, count=_count_operands)
    def operation(draws: Draws) -> Int64[Tensor, "columns *grid"]:
        operands = draws.free[:-1]
        result = functools.reduce(combine, operands.unbind(0))
        return torch.cat([operands, result.unsqueeze(0)])


_register_operation("addition", torch.add)
_register_operation("subtraction", torch.sub)


def _is_distribute_three(context: Context) -> Prescription:
    """All rows are orders of one set of G distinct values, as far as they are shown."""
    *before, last = context.columns
    complete = [*(column[:-1] for column in before), last]
    complete_rows = list(zip(*(column.unbind(0) for column in complete), strict=True))
    members, given = complete_rows[0], [column[-1] for column in before]
    no_repetition = (
        a != b for row in (*complete_rows, given) for a, b in itertools.combinations(row, 2)
    )
    known_values = (
        any_of(entry == member for member in members)
        for row in (*complete_rows[1:], given)
        for entry in row
    )
    # In a row without repetitions, what is missing from the set is missing from its sum.
    missing = sum(members[1:], members[0]) - sum(given[1:], given[0])
    return Prescription(every(itertools.chain(no_repetition, known_values)), missing)


@rule(
    "distribute_three",
    inverse=_is_distribute_three,
    count=_count_distribute_three,
    across_rows=True,
)
def _distribute_three(draws: Draws) -> Int64[Tensor, "columns *grid"]:
    return draws.distinct


PAPER_RULES = tuple(RULES)
"""The eight rules of the paper, in its order."""

_register_operation("minimum", torch.minimum)
_register_operation("maximum", torch.maximum)


def _agrees(
    expected: Int[Tensor, "rows *#grids"], shown: Int[Tensor, "shown_rows *#grids"]
) -> Bool[Tensor, "*#grids"]:
    """Whether a column is as expected, as far as it is shown."""
    return every((expected[: len(shown)] == shown).unbind(0))


def every(conditions: Iterable[Tensor]) -> Bool[Tensor, "*#grids"]:
    """Whether all of the conditions hold; they broadcast against each other."""
    return functools.reduce(torch.bitwise_and, conditions)


def any_of(conditions: Iterable[Tensor]) -> Bool[Tensor, "*#grids"]:
    """Whether one of the conditions holds."""
    return functools.reduce(torch.bitwise_or, conditions)

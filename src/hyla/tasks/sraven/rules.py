"""The rules of SRAVEN (paper, appendix B.3), as data.

A rule fills the rows of one feature's grid. It is one decorated function: it receives random draws
and returns the grid, as any integers, which the generator reduces modulo the number of values.
The columns are on the leading axis, so that elementwise work runs over long inner axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor


class Draws(NamedTuple):
    """What a rule may use; the draws of different rows and features are independent.

    The leading axis, of size G, stands for the columns; one of the others stands for the rows.
    """

    free: Int64[Tensor, "columns *grid"]
    """Independent, uniform values."""
    distinct: Int64[Tensor, "columns *grid"]
    """In each row an independent order of the same G distinct values, drawn once for the grid."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the rows of one feature come about."""

    name: str
    fill: Callable[[Draws], Int64[Tensor, "columns *grid"]]
    """Turns draws into a grid of integers."""
    count: Callable[[int, int], int]
    """Number of distinct grids, from the number of values and the grid size."""


RULES: dict[str, Rule] = {}
"""All rules by name."""


def rule(
    name: str, *, count: Callable[[int, int], int]
) -> Callable[[Callable[[Draws], Tensor]], Callable[[Draws], Tensor]]:
    """Register the decorated function as a rule."""

    def register(fill: Callable[[Draws], Tensor]) -> Callable[[Draws], Tensor]:
        RULES[name] = Rule(name=name, fill=fill, count=count)
        return fill

    return register


def _count_one_value_a_row(num_values: int, grid_size: int) -> int:
    return num_values**grid_size


def _count_operands(num_values: int, grid_size: int) -> int:
    return num_values ** (grid_size * (grid_size - 1))


def _count_distribute_three(num_values: int, grid_size: int) -> int:
    return math.comb(num_values, grid_size) * math.factorial(grid_size) ** grid_size


@rule("constant", count=_count_one_value_a_row)
def _constant(draws: Draws) -> Int64[Tensor, "columns *grid"]:
    return draws.free[:1].expand_as(draws.free)


def _register_progression(step: int) -> None:
    @rule(f"progression{step:+d}", count=_count_one_value_a_row)
    def progression(draws: Draws) -> Int64[Tensor, "columns *grid"]:
        grid_size = draws.free.shape[0]
        steps = torch.arange(0, step * grid_size, step, device=draws.free.device)
        return draws.free[:1] + steps.view(-1, *[1] * (draws.free.ndim - 1))


for _step in (+1, +2, -1, -2):
    _register_progression(_step)


@rule("addition", count=_count_operands)
def _addition(draws: Draws) -> Int64[Tensor, "columns *grid"]:
    operands = draws.free[:-1]
    return torch.cat([operands, operands.sum(dim=0, keepdim=True)])


@rule("subtraction", count=_count_operands)
def _subtraction(draws: Draws) -> Int64[Tensor, "columns *grid"]:
    operands = draws.free[:-1]
    return torch.cat([operands, 2 * operands[:1] - operands.sum(dim=0, keepdim=True)])


@rule("distribute_three", count=_count_distribute_three)
def _distribute_three(draws: Draws) -> Int64[Tensor, "columns *grid"]:
    return draws.distinct


PAPER_RULES = tuple(RULES)
"""The eight rules of the paper, in its order."""

"""When an instance is ambiguous: by the paper's definition, and by the authors' check."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hyla.tasks.sraven.checks import check_whole_grids
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.matching import BestMatching
from hyla.tasks.sraven.rules import Context, Prescription, any_of, every
from hyla.tasks.sraven.solver.exact import Solution
from hyla.tasks.sraven.threads import narrowed, prescriptions, thread_context

_WORKING_SET = 2**20  # threads × instances looked at together
_READ_DIFFERENTLY = "distribute_three"  # what the authors' check has a sense of its own for


def ambiguous_by_definition(solution: Solution) -> Bool[Tensor, "b"]:
    """The paper's definition: the readings of the context prescribe more than one query panel."""
    return solution.num_answers > 1


def ambiguous_by_authors(
    panels: Int[Tensor, "b rows columns m"], config: SravenConfig, *, permuted: bool = True
) -> Bool[Tensor, "b"]:
    """What the authors' released check finds: a reading that is wrong about every feature.

    An instance counts if its columns can be put in such an order that each feature has some fitting
    rule that prescribes another value than the true one. A reading that is right about a single
    feature does not make an instance ambiguous. When distribute-three fits, and what it prescribes,
    is also theirs (`_distribute_three_as_released`). The query panel must be the true one:
    a hidden one is a ValueError.

    `permuted=False` leaves the columns in the order shown. Their check has no such mode: it tries
    all orders, so that it finds the same share of ambiguous instances in either kind of split.
    """
    config.refuse_distractors("the authors' check")
    check_whole_grids(panels, config)
    matching = BestMatching(
        num_features=config.num_features,
        num_columns=config.grid_size if permuted else 1,
        device=panels.device,
    )
    found = []
    for part in panels.split(matching.instances_together(_WORKING_SET)):
        grids = narrowed(part.permute(2, 1, 3, 0), num_values=config.num_values)
        context = thread_context(grids, num_values=config.num_values, permuted=permuted)
        readings = prescriptions(context, tuple(r for r in config.rules if r != _READ_DIFFERENTLY))
        if _READ_DIFFERENTLY in config.rules:
            readings.append(_distribute_three_as_released(context))
        wrong = any_of(one.fits & (one.value != grids[-1, -1]) for one in readings)
        found.append(matching(wrong.to(matching.dtype)) > 0)
    return torch.cat(found)


def _distribute_three_as_released(context: Context) -> Prescription:
    """The rule as the authors' check sees it, which is more often than the generator produces it.

    It fits if the complete rows are orders of one multiset, so repetitions are allowed, and the
    given entries of the last row occur in it, be it the same entry twice. It prescribes the value
    that the last row has shown the least often, the smallest of several.
    """
    *before, last = context.columns
    complete = [*(column[:-1] for column in before), last]
    first, *others = zip(*(column.unbind(0) for column in complete), strict=True)
    given = [column[-1] for column in before]
    # Rows of equal length in which every entry of the first is equally frequent are the same.
    same_multiset = (_times(x, first) == _times(x, row) for row in others for x in first)
    known = (any_of(x == member for member in first) for x in given)
    # The smallest pair (times shown, value), as one number.
    pairs = (_times(x, given) * context.num_values + x for x in first)
    least_shown = functools.reduce(torch.minimum, pairs)
    return Prescription(every([*same_multiset, *known]), least_shown.remainder(context.num_values))


def _times(value: Int[Tensor, "*#grids"], row: Sequence[Tensor]) -> Int[Tensor, "*#grids"]:
    """How often a row shows a value."""
    return functools.reduce(operator.add, ((value == entry).to(value.dtype) for entry in row))

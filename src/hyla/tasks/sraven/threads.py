"""Threads: the ways in which one feature may run through the columns of an instance.

A thread is a choice of one position in each column. Where the columns show the features in orders
of their own there are M^G of them; where all show them in the same order there are M.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from hyla.tasks.sraven.rules import RULES, Context, Prescription


def narrowed(
    grids: Int[Tensor, "columns rows m n"], *, num_values: int
) -> Int[Tensor, "columns rows m n"]:
    """The same in 32 bits, which are faster, if a rule's arithmetic has room in them.

    Whatever goes to a rule has to pass through here: in fewer bits the arithmetic would wrap.
    """
    return grids.to(torch.int32 if num_values <= 2**20 else torch.int64).contiguous()


def thread_context(
    grids: Int[Tensor, "columns rows m n"], *, num_values: int, permuted: bool
) -> Context:
    """What is shown of each thread's grid; the query panel's entries are left out.

    The columns have the shape [rows, *positions, N]: a position axis for each column if they are
    permuted, which is 1 in the others, and a common one if not.
    """
    num_columns, rows, num_features, num_instances = grids.shape
    columns = []
    for c, column in enumerate(grids.unbind(0)):
        visible = column[: rows - 1] if c == num_columns - 1 else column
        if permuted:
            axes = [1] * num_columns
            axes[c] = num_features
            visible = visible.reshape(len(visible), *axes, num_instances)
        columns.append(visible)
    return Context(tuple(columns), num_values)


def prescriptions(context: Context, rules: tuple[str, ...]) -> list[Prescription]:
    """What each rule makes of each thread."""
    return [RULES[name].inverse(context) for name in rules]

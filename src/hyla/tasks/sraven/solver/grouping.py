"""Rows of several integers: which of them are equal, and sums over the equal ones."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

_LARGEST_KEY = 2**62


def distinct(
    *fields: tuple[Int64[Tensor, "rows"], int],
) -> tuple[Int64[Tensor, "groups"], Int64[Tensor, "rows"]]:
    """Number the different rows, given as columns with an upper bound of their values each.

    Returns a row of each group, and the group of each row. The groups are in lexicographic order.
    """
    (key, size), *others = fields
    for field, bound in others:
        if size * bound > _LARGEST_KEY:
            values, key = key.unique(return_inverse=True)
            size = len(values)
        if size * bound > _LARGEST_KEY:
            values, field = field.unique(return_inverse=True)
            bound = len(values)
        key, size = key * bound + field, size * bound
    values, group = key.unique(return_inverse=True)
    rows = torch.arange(len(group), device=group.device)
    first = torch.empty_like(values).scatter_(0, group, rows)
    return first, group


def log_sum_groups(
    logs: Float64[Tensor, "rows"], group: Int64[Tensor, "rows"], num_groups: int
) -> Float64[Tensor, "groups"]:
    """The logarithm of the sum of exp(logs) over each group."""
    highest = logs.new_full((num_groups,), -torch.inf).scatter_reduce_(0, group, logs, "amax")
    sums = logs.new_zeros(num_groups).index_add_(0, group, (logs - highest[group]).exp_())
    return sums.log_().add_(highest)

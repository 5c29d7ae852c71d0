"""When an instance is ambiguous: by the paper's definition, and by the authors' criterion."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int16
from torch import Tensor

from hyla.tasks.sraven.checks import check_panels
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.matching import BestMatching
from hyla.tasks.sraven.rules import Context
from hyla.tasks.sraven.solver import Solution
from hyla.tasks.sraven.threads import prescriptions, thread_context

_MOST_FEATURES = 14  # the product of as many scores of two fits int16
_WORKING_SET = 2**21  # threads × instances looked at together

_AGREES, _CONFLICTS = 1, 2  # the scores of threads; a product above one has a conflict in it


def ambiguous_by_definition(solution: Solution) -> Bool[Tensor, "b"]:
    """The paper's definition: the readings of the context prescribe more than one query panel."""
    return solution.num_answers > 1


def ambiguous_by_authors(
    panels: Int[Tensor, "b rows columns m"], config: SravenConfig, *, permuted: bool = True
) -> Bool[Tensor, "b"]:
    """The criterion behind the paper's Table A2: a reading that is wrong about every feature.

    An instance counts if its columns can be put in such an order that each feature has some fitting
    rule that prescribes another value than the true one. A reading that is right about a single
    feature does not make an instance ambiguous. Distribute-three is taken to fit wherever all rows
    show the same values, even if they repeat some, and any of these that the last row does not show
    yet continues it (`docs/sraven.md` says why). The query panel must be the true one.
    """
    check_panels(panels, config)
    judge = Conflicts(config, permuted=permuted, device=panels.device)
    threads = config.num_features ** (config.grid_size if permuted else 1)
    parts = panels.split(max(1, _WORKING_SET // threads))
    return torch.cat([judge(part, as_authors=True).everywhere for part in parts])


class Conflict(NamedTuple):
    """Whether some reading contradicts the true query panel ..."""

    somewhere: Bool[Tensor, "n"]
    """... in at least one feature: the paper's definition of an ambiguous instance."""
    everywhere: Bool[Tensor, "n"]
    """... in all features."""


class Conflicts:
    """Compares the readings of instances with their true query panels, in fixed shapes.

    It does less than the solver, since it neither lists answers nor weighs them, and what it does
    can be compiled and captured.
    """

    def __init__(
        self, config: SravenConfig, *, permuted: bool, device: torch.device | str = "cpu"
    ) -> None:
        M, G = config.num_features, config.grid_size
        if M > _MOST_FEATURES:
            raise ValueError(f"num_features must be at most {_MOST_FEATURES} here, got {M}")
        self._config = config
        self._permuted = permuted
        if permuted:
            self._best_matching = BestMatching(num_features=M, num_columns=G, device=device)

    def __call__(
        self, panels: Int[Tensor, "n rows columns m"], *, as_authors: bool = False
    ) -> Conflict:
        """Compare; `as_authors` takes their view of when distribute-three fits."""
        M = self._config.num_features
        grids = panels.permute(1, 2, 3, 0).contiguous()
        scores = self._scores(grids, as_authors=as_authors)
        if self._permuted:
            best = self._best_matching(scores.flatten(1, -2))
        else:
            best = scores[0]
            for score in scores[1:].unbind(0):
                best = best * score
        return Conflict(best > _AGREES, best == _CONFLICTS**M)

    def _scores(
        self, panels: Int[Tensor, "rows columns m n"], *, as_authors: bool
    ) -> Int16[Tensor, "*positions n"]:
        """Of each thread: 2 if a rule fits it and is wrong, else 1 if one fits, else 0."""
        K = self._config.num_values
        context = thread_context(panels, num_values=K, permuted=self._permuted)
        truth = panels[-1, -1]  # its positions are those of the last column, hence the last axis
        found = prescriptions(context, self._config.rules)
        fits = [one.fits for one in found]
        conflicts = [one.fits & (one.value != truth) for one in found]
        if as_authors and "distribute_three" in self._config.rules:
            conflicts.append(_distributes_otherwise(context, truth))
        agreeing, conflicting = (_any(these).to(torch.int16) for these in (fits, conflicts))
        return torch.maximum(agreeing * _AGREES, conflicting * _CONFLICTS)


def _distributes_otherwise(
    context: Context, truth: Int[Tensor, "m n"]
) -> Bool[Tensor, "*#positions n"]:
    """Whether distribute-three, in the authors' wide sense, has a continuation that is not true."""
    *before, last = context.columns
    complete = [*(column[:-1] for column in before), last]
    first_row, *other_rows = zip(*(column.unbind(0) for column in complete), strict=True)
    given = [column[-1] for column in before]
    same_values = [_is_in(entry, first_row) for row in (*other_rows, given) for entry in row]
    same_values += [_is_in(member, row) for row in other_rows for member in first_row]
    continuation = [(member != truth) & ~_is_in(member, given) for member in first_row]
    return torch.stack(torch.broadcast_tensors(*same_values, _any(continuation))).all(0)


def _is_in(entry: Tensor, row: Sequence[Tensor]) -> Bool[Tensor, "*#positions n"]:
    return _any([entry == other for other in row])


def _any(conditions: Sequence[Tensor]) -> Bool[Tensor, "*#positions n"]:
    return functools.reduce(torch.logical_or, conditions)

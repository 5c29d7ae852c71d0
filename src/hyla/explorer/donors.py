"""Donors: puzzles whose last place follows a certain rule, found among several thousand."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor

from hyla.explorer.codes import PairList, record
from hyla.explorer.gallery import Exhibit
from hyla.explorer.puzzles import Puzzle, build, unpermuted
from hyla.tasks.splits import Combination

COMBINATIONS = 8
"""Combinations of rules that are searched at most ..."""
SEEDS = 512
"""... and puzzles of each."""
_TRIED = 8  # puzzles of each that the model is asked about at most

Operands = tuple[int, ...]


class Donor(NamedTuple):
    """A puzzle, and what the model makes of it."""

    puzzle: Puzzle
    codes: Tensor
    """[layers, pairs, heads]"""
    answer: int
    """At the last place."""

    @property
    def solved(self) -> bool:
        """Whether that is right."""
        return self.answer == self.puzzle.problem.answer[-1]


def donor_of(subject: Exhibit, puzzle: Puzzle, pairs: PairList) -> Donor:
    """Return this puzzle as a donor."""
    return next(_asked(subject, [puzzle], pairs))


def find_donor(
    subject: Exhibit, recipient: Puzzle, rule: int, pairs: PairList, operands: Operands | None
) -> Donor | None:
    """Return another puzzle with this rule, and these operands if given; one that is solved first.

    As in `hyla.latents.Swaps`, it is of the recipient's side of the model's split, if there is one.
    """
    best = None
    for combination in _combinations(subject, recipient, rule):
        found = _matching(subject, recipient, combination, rule, operands)
        for donor in _asked(subject, found, pairs):
            if donor.solved:
                return donor
            best = best or donor
    return best


def operands_of(puzzle: Puzzle) -> Operands:
    """Return what the last place's rule is applied to: what the last row shows there."""
    return tuple(panel[-1] for panel in puzzle.problem.panels[-1][:-1])


def _combinations(subject: Exhibit, recipient: Puzzle, rule: int) -> Iterator[Combination]:
    """Yield some with this rule, of the recipient's side first; others for each of its numbers."""
    sides = subject.sraven.manifest(subject.seed).sides.values()
    own_first = sorted(sides, key=lambda side: recipient.rules not in side)
    with_rule = ([one for one in side if rule in one] for side in own_first)
    turned = (_turned(side, recipient.problem.index) for side in with_rule)
    return islice(chain.from_iterable(turned), COMBINATIONS)


def _turned(items: Sequence[Combination], places: int) -> Sequence[Combination]:
    start = places % max(len(items), 1)
    return [*items[start:], *items[:start]]


def _matching(
    subject: Exhibit,
    recipient: Puzzle,
    combination: Combination,
    rule: int,
    operands: Operands | None,
) -> list[Puzzle]:
    panels, rules = unpermuted(subject, combination, seeds=SEEDS)
    matches = rules[:, -1] == rule
    if operands is not None:
        matches &= (panels[:, -1, :-1, -1] == torch.tensor(operands)).all(dim=-1)
    seeds = matches.nonzero()[: _TRIED + 1, 0].tolist()
    puzzles = (build(subject, combination, permuted=False, seed=seed) for seed in seeds)
    return [puzzle for puzzle in puzzles if puzzle.id != recipient.id][:_TRIED]


def _asked(subject: Exhibit, puzzles: list[Puzzle], pairs: PairList) -> Iterator[Donor]:
    if not puzzles:
        return
    recorded = record(subject, torch.cat([puzzle.inputs for puzzle in puzzles]), pairs)
    for number, puzzle in enumerate(puzzles):
        yield Donor(puzzle, recorded.codes[:, number], int(recorded.predictions[number, -1]))

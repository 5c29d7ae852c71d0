"""Instances of SRAVEN, sampled, and as a model sees them."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from hyla.tasks.base import Batch, Sampler, pick_combinations
from hyla.tasks.randomness import (
    Keys,
    RandomStream,
    arrangement_radices,
    counters,
    random_words,
    to_arrangements,
    to_integers,
)
from hyla.tasks.sraven.combinations import all_combinations
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.conflicts import Conflicts
from hyla.tasks.sraven.rules import RULES, Draws

LEFT_AMBIGUOUS = 1e-5
"""The share of instances that may stay ambiguous in the unambiguous mode ..."""
MOST_CANDIDATES = 32
"""... unless they would have to be drawn more often than this to get there."""

_INSTANCES_COUNTED = 4096  # to estimate the share of ambiguous ones


class Instances(NamedTuple):
    """Problem instances as integers, with what they were made from."""

    panels: Int64[Tensor, "*p b rows columns m"]
    """The whole grid; the last panel is the answer. Blanks are -1."""
    rules: Int64[Tensor, "*p b m"]
    """The rule of each feature, as an index into `SravenConfig.rules`; the number after the last
    stands for none, in distractors and blanks."""
    permutations: Int64[Tensor, "*p b columns m"]
    """Position m of the panels of column c shows feature `permutations[..., c, m]`."""


def is_permuted(split: str) -> bool:
    """Whether the instances of a split have columns with orders of their own."""
    return not split.endswith("unpermuted")


class SravenSampler(Sampler):
    """Samples SRAVEN; beside batches it can return the instances behind them.

    With `SravenConfig(unambiguous=True)` instance n is the first of several draws whose context
    allows one answer only, by the paper's definition. The first draw is the instance that the plain
    mode would return. Should all draws be ambiguous, the last is returned as it is. There are so
    many draws (`num_candidates`) that this happens to fewer than one instance in 100,000, but never
    more than 32 (`MOST_CANDIDATES`). Where nearly all instances are ambiguous, because there are
    few values, these are not enough: a warning then says which share to expect
    (`left_ambiguous`), in the paper's setting with three values about one in twelve.
    """

    def __init__(
        self,
        config: SravenConfig,
        split: str,
        *,
        seeds: Sequence[int],
        combinations: Int64[Tensor, "p n m"],
        batch_size: int,
    ) -> None:
        device = combinations.device
        super().__init__(batch_size=batch_size, device=device)
        M, K, G = config.panel_size, config.num_values, config.grid_size
        self._config = config
        self._permuted = is_permuted(split)
        self._combinations = combinations
        self._stream = RandomStream(seeds=seeds, name=f"sraven/{split}", device=device)
        # The random words of an instance: for its combination; for the orders of the features, as
        # the rules are assigned to them and as each column shows them; and for each feature's free
        # values, its distinct symbols and their order in each row.
        self._word_shapes = ((1,), (M, 1 + G), (G, G, M), (G, 1, M), (G, G, M))
        self._num_words = [torch.Size(shape).numel() for shape in self._word_shapes]
        self.num_candidates = num_candidates(config, self._permuted) if config.unambiguous else 1
        total = sum(self._num_words)
        self._counters = (
            counters(0, self.num_candidates * total, device=device)
            .view(self.num_candidates, total)
            .t()
            .contiguous()
        )
        if config.unambiguous:
            left = left_ambiguous(config, permuted=self._permuted)
            if left > LEFT_AMBIGUOUS:
                _warn(
                    f"unambiguous=True: of {'' if self._permuted else 'un'}permuted instances "
                    f"{100 * left:.2g} % are expected to stay ambiguous through all "
                    f"{self.num_candidates} draws; take more values (num_values is {K}) to leave "
                    "fewer"
                )
            self._conflicts = Conflicts(config, permuted=self._permuted, device=device)
            self._candidates = torch.arange(self.num_candidates, device=device).view(-1, 1)
        self._feature_radices = arrangement_radices(M, M, device=device)
        # With fewer values than columns no rule is left that takes distinct ones.
        self._symbol_radices = arrangement_radices(max(K, G), G, device=device)
        self._column_radices = arrangement_radices(G, G, device=device)

    def __call__(self, index: int | Int64[Tensor, ""]) -> Batch:
        """Batch number `index`, with a leading axis P."""
        return as_batch(self.instances(index), num_values=self._config.num_values)

    def instances(self, index: int | Int64[Tensor, ""]) -> Instances:
        """The instances of batch number `index`, with a leading axis P."""
        keys = self._stream.keys(self._instance_numbers(index))  # [P, B]
        if not self._config.unambiguous:
            return self._build(random_words(keys, self._counters.unsqueeze(-1)))
        # Only the numbers of the chosen candidates are kept; drawing these once more costs less
        # than finishing all of them.
        return self._build(random_words(keys, self._counters[:, self._first_unambiguous(keys)]))

    def _first_unambiguous(self, keys: Keys) -> Int64[Tensor, "p b"]:
        """The number of the first candidate with one answer; of the last if there is none."""
        size = (len(keys.first), self.num_candidates, self.batch_size)
        of_instances = Keys(*(key.unsqueeze(1) for key in keys))
        words = random_words(of_instances, self._counters.view(-1, 1, self.num_candidates, 1))
        # The features' own order serves as well as the orders shown: it has the same readings.
        grids, _, _ = self._draw_grids(words.flatten(2))
        ambiguous = self._conflicts(grids.flatten(-2)).view(size)
        last = self.num_candidates - 1
        return torch.where(ambiguous, last, self._candidates).amin(dim=1)

    def _build(self, words: Int32[Tensor, "words p b"]) -> Instances:
        """Instances from their random words."""
        grids, rules, permutations = self._draw_grids(words)
        if self._permuted:
            grids = grids.gather(2, permutations.unsqueeze(1).expand_as(grids))
        else:
            identity = torch.arange(self._config.panel_size, device=grids.device)
            permutations = identity.view(1, -1, 1, 1).expand_as(permutations)
        return Instances(
            panels=grids.permute(3, 4, 1, 0, 2).contiguous(),
            rules=rules.movedim(0, -1).contiguous(),
            permutations=permutations.permute(2, 3, 0, 1).contiguous(),
        )

    def _draw_grids(
        self, words: Int32[Tensor, "words p b"]
    ) -> tuple[
        Int64[Tensor, "columns rows m p b"],
        Int64[Tensor, "m p b"],
        Int64[Tensor, "columns m p b"],
    ]:
        """The grid and the rule of each feature, and the orders in which to show the features.

        The instances are the innermost axis throughout, because it is the longest.
        """
        combination, feature_orders, free, symbols, symbol_orders = (
            part.unflatten(0, shape)
            for part, shape in zip(words.split(self._num_words), self._word_shapes, strict=True)
        )

        choice = to_integers(combination[0], self._combinations.shape[1])
        multiset = pick_combinations(self._combinations, choice).movedim(-1, 0)  # [M, P, B]
        orders = to_arrangements(feature_orders, self._feature_radices)  # [M, 1 + G, P, B]
        rules = multiset.gather(0, orders[:, 0])

        distinct = to_arrangements(symbols, self._symbol_radices)  # [G, 1, M, P, B]
        symbol_orders = to_arrangements(symbol_orders, self._column_radices)  # [G, G, M, P, B]
        draws = Draws(
            free=to_integers(free, self._config.num_values),
            distinct=distinct.expand_as(symbol_orders).gather(0, symbol_orders),
        )
        return self._fill(rules, draws), rules, orders[:, 1:].transpose(0, 1)

    def _fill(
        self, rules: Int64[Tensor, "m p b"], draws: Draws
    ) -> Int64[Tensor, "columns rows m p b"]:
        # Every rule fills every grid, and the one that applies is kept: no shape depends on data.
        grids = draws.free  # what distractors show
        for number, name in enumerate(self._config.rules):
            grids = torch.where(rules == number, RULES[name].fill(draws), grids)
        grids = grids.remainder(self._config.num_values)
        if self._config.train_features:
            grids = torch.where(rules == self._config.distractor_label, -1, grids)
        return grids


def num_candidates(config: SravenConfig, permuted: bool) -> int:
    """How often instances are drawn, so that few stay ambiguous (see `LEFT_AMBIGUOUS`).

    It follows from the share of ambiguous ones among the same few thousand instances every time, so
    it depends on the configuration alone.
    """
    share = _ambiguous_share(config, permuted)
    # Two standard errors, to be on the safe side.
    share += 2 * math.sqrt(share * (1 - share) / _INSTANCES_COUNTED)
    if share >= 1:
        return MOST_CANDIDATES
    return min(MOST_CANDIDATES, math.ceil(math.log(LEFT_AMBIGUOUS) / math.log(share)))


def left_ambiguous(config: SravenConfig, *, permuted: bool) -> float:
    """The share of instances that the unambiguous mode is expected to leave ambiguous."""
    return _ambiguous_share(config, permuted) ** num_candidates(config, permuted)


@functools.cache
def _ambiguous_share(config: SravenConfig, permuted: bool) -> float:
    """The share of ambiguous instances in the plain mode, over all combinations of rules."""
    combinations = torch.tensor(all_combinations(config, config.num_features)).unsqueeze(0)
    sampler = SravenSampler(
        dataclasses.replace(config, unambiguous=False),
        "candidates" if permuted else "candidates_unpermuted",
        seeds=[0],
        combinations=combinations,
        batch_size=_INSTANCES_COUNTED,
    )
    panels = sampler.instances(0).panels[0]
    ambiguous = Conflicts(config, permuted=permuted)(panels.permute(2, 1, 3, 0))
    # One more than were found, for none among so many does not mean that there are none.
    return (int(ambiguous.sum()) + 1) / (len(panels) + 1)


@functools.cache
def _warn(message: str) -> None:
    """Warn, the first time, whoever asked a task for a sampler."""
    warnings.warn(message, stacklevel=5)


def as_batch(instances: Instances, *, num_values: int) -> Batch:
    """Instances as a model sees them, and what it has to predict."""
    panels, rules, permutations = instances
    return Batch(
        inputs=encode(panels, num_values=num_values),
        targets=panels[..., -1, -1, :].clamp(min=0),  # of a blank, any value will do
        labels=rules.gather(-1, permutations[..., -1, :]),
    )


def encode(
    panels: Int64[Tensor, "*batch rows columns m"], *, num_values: int
) -> Float[Tensor, "*batch tokens values"]:
    """The one-hot tokens of a grid, with those of the last panel all zero."""
    num_features = panels.shape[-1]
    context = panels.flatten(-3)[..., :-num_features]
    no_value = context.new_full((*context.shape[:-1], num_features), -1)
    codes = torch.cat([context, no_value], dim=-1)
    values = torch.arange(num_values, device=panels.device)
    return (codes.unsqueeze(-1) == values).to(torch.float32)

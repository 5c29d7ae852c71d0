"""SRAVEN: symbolic Raven matrices, sampled (paper, section 4)."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Float64, Int32, Int64
from torch import Tensor

from hyla.tasks.base import (
    Batch,
    Manifest,
    Sampler,
    Task,
    pick_combinations,
)
from hyla.tasks.randomness import (
    Keys,
    RandomStream,
    arrangement_radices,
    counters,
    random_words,
    to_arrangements,
    to_integers,
)
from hyla.tasks.registry import register_task
from hyla.tasks.splits import Combination
from hyla.tasks.sraven.combinations import all_combinations, combinations_by_side
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.conflicts import Conflicts
from hyla.tasks.sraven.objective import Classification
from hyla.tasks.sraven.rules import RULES, Draws

if TYPE_CHECKING:
    from hyla.tasks.sraven.study import SravenStudy

LEFT_AMBIGUOUS = 1e-5
"""The share of instances that may stay ambiguous in the unambiguous mode ..."""
MOST_CANDIDATES = 32
"""... unless they would have to be drawn more often than this to get there."""

_INSTANCES_COUNTED = 4096  # to estimate the share of ambiguous ones

SIDE_OF_SPLIT = {
    "train": "train",
    "validation": "train",
    "test": "train",
    "ood": "ood",
    "test_unpermuted": "train",
    "ood_unpermuted": "ood",
}
"""The side of the manifest that a split takes its combinations of rules from."""


class Instances(NamedTuple):
    """Problem instances as integers, with what they were made from."""

    panels: Int64[Tensor, "*p b rows columns m"]
    """The whole grid; the last panel is the answer. Blanks are -1."""
    rules: Int64[Tensor, "*p b m"]
    """The rule of each feature, as an index into `SravenConfig.rules`; the number after the last
    stands for none, in distractors and blanks."""
    permutations: Int64[Tensor, "*p b columns m"]
    """Position m of the panels of column c shows feature `permutations[..., c, m]`."""


@register_task("sraven")
class Sraven(Task["SravenSampler"]):
    """Complete a G × G grid of panels of M integers, each feature following a rule along its rows.

    A multiset of M rules is drawn and assigned to the features in random order. In each column the
    features are shown in an order of the column's own, the same for all its rows. Distractors
    (`SravenConfig.num_distractors`) are features like the others, mixed with them at random, but
    all their values are independent and uniform.

    With `SravenConfig.train_features` training shows fewer features than the M that `ood` shows.
    The others are blank, and mixed with the rest at random: their tokens are all zero, and the
    query's are not scored.

    Batches (M counts distractors too):
      - `inputs` [B, G²·M, K]: the panels row by row, in each the features in the order shown, one
        one-hot token each; the M tokens of the last panel are all zero.
      - `targets` [B, M] int64: the last panel, as shown.
      - `labels` [B, M]: the rule that determines each of the targets; for a distractor or a blank,
        which no rule determines, `SravenConfig.distractor_label`. Such targets are not to be
        scored.

    Splits: `train`; `validation` and `test`, new
    instances of training combinations; `ood`, held-out combinations;
    `test_unpermuted` and `ood_unpermuted`, with the features in the same order in all columns.
    """

    title = "SRAVEN"
    config_class = SravenConfig
    presets = Path(__file__).with_name("presets.yaml")
    searched = MappingProxyType(
        {"learning_rate": (1e-3, 3e-4), "weight_decay": (0.1, 0.3), "warmup_steps": (1000, 3000)}
    )

    def __init__(self, config: SravenConfig) -> None:
        self.config = config

    @classmethod
    def variant_settings(cls, name: str) -> SravenConfig:
        """The settings of a variant."""
        from hyla.tasks.sraven.variants import variant_named

        return variant_named(name).config

    @property
    def objective(self) -> Classification:
        """Cross-entropy; right means that all features that follow a rule are right."""
        return Classification(
            self.num_queries, self.config.rules, all_scored=self.config.all_scored
        )

    @property
    def study(self) -> SravenStudy:
        """Which rule gives the last feature of the query panel."""
        from hyla.tasks.sraven.study import SravenStudy

        return SravenStudy(self)

    def ceiling(
        self, split: str, *, seed: int, instances: int, device: torch.device | str = "cpu"
    ) -> Float64[Tensor, " n"] | None:
        """The posterior of the best answer, by the exact solver; None of what it cannot read."""
        from hyla.tasks.sraven.solver.ceiling import best_posteriors

        if not self.is_readable(split):
            return None
        return best_posteriors(self, split, seed=seed, instances=instances, device=device)

    def is_readable(self, split: str) -> bool:
        """Whether the solver can read a split's instances: all that they show follows a rule."""
        self.check_split(split)
        return self.config.all_scored or (
            not self.config.num_distractors and SIDE_OF_SPLIT[split] == "ood"
        )

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(SIDE_OF_SPLIT)

    @property
    def input_dim(self) -> int:
        """A token is one-hot over the values."""
        return self.config.num_values

    @property
    def output_dim(self) -> int:
        """Logits over the values."""
        return self.config.num_values

    @property
    def sequence_length(self) -> int:
        """One token for each feature of each panel."""
        return self.config.grid_size**2 * self.config.panel_size

    @property
    def num_queries(self) -> int:
        """The features of the last panel are predicted."""
        return self.config.panel_size

    def manifest(self, seed: int) -> Manifest:
        """The multisets of rules in `train` and `ood`."""
        seed = seed if self.config.split_seed is None else self.config.split_seed
        split = combinations_by_side(self.config, seed)
        return Manifest(
            task="sraven",
            seed=seed,
            constituents=self.config.rules,
            sides={"train": split.train, "ood": split.held_out},
        )

    def _build_sampler(
        self, split: str, *, seeds: Sequence[int], batch_size: int, device: torch.device | str
    ) -> SravenSampler:
        sides = [self.manifest(seed).sides[SIDE_OF_SPLIT[split]] for seed in seeds]
        # What follows no rule is to be laid onto the features like the rest.
        filled = [[self._filled(combination) for combination in side] for side in sides]
        return SravenSampler(
            self.config,
            split,
            seeds=seeds,
            combinations=torch.tensor(filled, dtype=torch.int64, device=device),
            batch_size=batch_size,
        )

    def _filled(self, combination: Combination) -> Combination:
        """Rules for all features of a panel; the missing ones are none."""
        missing = self.config.panel_size - len(combination)
        return (*combination, *[self.config.distractor_label] * missing)


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
        self._permuted = not split.endswith("unpermuted")
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

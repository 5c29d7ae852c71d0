"""SRAVEN: symbolic Raven matrices, sampled (paper, section 4)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from hyla.tasks.base import (
    Batch,
    Manifest,
    Sampler,
    Task,
    pick_combinations,
    stack_combinations,
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
from hyla.tasks.splits import split_combinations
from hyla.tasks.sraven.ambiguity import Conflicts
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.rules import RULES, Draws

NUM_CANDIDATES = 8
"""How many instances the unambiguous mode draws for each that it returns."""

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
    """The whole grid; the last panel is the answer."""
    rules: Int64[Tensor, "*p b m"]
    """The rule of each feature, as an index into `SravenConfig.rules`."""
    permutations: Int64[Tensor, "*p b columns m"]
    """Position m of the panels of column c shows feature `permutations[..., c, m]`."""


class Sraven(Task["SravenSampler"]):
    """Complete a G × G grid of panels of M integers, each feature following a rule along its rows.

    A multiset of M rules is drawn and assigned to the features in random order. In each column the
    features are shown in an order of the column's own, the same for all its rows.

    Batches:
      - `inputs` [B, G²·M, K]: the panels row by row, in each the features in the order shown, one
        one-hot token each; the M tokens of the last panel are all zero.
      - `targets` [B, M] int64: the last panel, as shown.
      - `labels` [B, M]: the rule that determines each of the targets.

    Splits: `train`; `validation` and `test`, new
    instances of training combinations; `ood`, held-out combinations;
    `test_unpermuted` and `ood_unpermuted`, with the features in the same order in all columns.
    """

    def __init__(self, config: SravenConfig) -> None:
        self.config = config

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
        return self.config.grid_size**2 * self.config.num_features

    @property
    def num_queries(self) -> int:
        """The features of the last panel are predicted."""
        return self.config.num_features

    def manifest(self, seed: int) -> Manifest:
        """The multisets of rules in `train` and `ood`."""
        combinations = list(
            itertools.combinations_with_replacement(
                range(len(self.config.rules)), self.config.num_features
            )
        )
        split = split_combinations(
            combinations, held_out_fraction=self.config.held_out_fraction, seed=seed
        )
        return Manifest(
            task="sraven",
            seed=seed,
            constituents=self.config.rules,
            sides={"train": split.train, "ood": split.held_out},
        )

    def _build_sampler(
        self, split: str, *, seeds: Sequence[int], batch_size: int, device: torch.device | str
    ) -> SravenSampler:
        return SravenSampler(
            self.config,
            split,
            seeds=seeds,
            combinations=stack_combinations(
                [self.manifest(seed) for seed in seeds], SIDE_OF_SPLIT[split], device=device
            ),
            batch_size=batch_size,
        )


class SravenSampler(Sampler):
    """Samples SRAVEN; beside batches it can return the instances behind them.

    With `SravenConfig(unambiguous=True)` instance n is the first of `NUM_CANDIDATES` draws whose
    context allows one answer only, by the paper's definition. The first draw is the instance that
    the plain mode would return. Should all be ambiguous the last is returned as it is; if a
    fraction q of all instances is ambiguous that happens with probability q^8: once in 90,000
    instances in the paper's setting.
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
        M, K, G = config.num_features, config.num_values, config.grid_size
        self._config = config
        self._permuted = not split.endswith("unpermuted")
        self._combinations = combinations
        self._stream = RandomStream(seeds=seeds, name=f"sraven/{split}", device=device)
        # The random words of an instance: for its combination; for the orders of the features, as
        # the rules are assigned to them and as each column shows them; and for each feature's free
        # values, its distinct symbols and their order in each row.
        self._word_shapes = ((1,), (M, 1 + G), (G, G, M), (G, 1, M), (G, G, M))
        self._num_words = [torch.Size(shape).numel() for shape in self._word_shapes]
        candidates = NUM_CANDIDATES if config.unambiguous else 1
        total = sum(self._num_words)
        self._counters = (
            counters(0, candidates * total, device=device).view(candidates, total).t().contiguous()
        )
        if config.unambiguous:
            self._conflicts = Conflicts(config, permuted=self._permuted, device=device)
        self._feature_radices = arrangement_radices(M, M, device=device)
        self._symbol_radices = arrangement_radices(K, G, device=device)
        self._column_radices = arrangement_radices(G, G, device=device)

    def __call__(self, index: int | Int64[Tensor, ""]) -> Batch:
        """Batch number `index`, with a leading axis P."""
        panels, rules, permutations = self.instances(index)
        return Batch(
            inputs=encode(panels, num_values=self._config.num_values),
            targets=panels[..., -1, -1, :].contiguous(),
            labels=rules.gather(-1, permutations[..., -1, :]),
        )

    def instances(self, index: int | Int64[Tensor, ""]) -> Instances:
        """The instances of batch number `index`, with a leading axis P."""
        keys = self._stream.keys(self._instance_numbers(index))  # [P, B]
        if not self._config.unambiguous:
            return self._build(random_words(keys, self._counters.unsqueeze(-1)))
        keys = Keys(*(key.unsqueeze(1) for key in keys))
        words = random_words(keys, self._counters.view(-1, 1, NUM_CANDIDATES, 1))
        candidates = self._build(words.flatten(2))
        return self._first_unambiguous(candidates)

    def _first_unambiguous(self, candidates: Instances) -> Instances:
        """One of each instance's candidates, which are [P, candidates * B]."""
        conflict = self._conflicts(candidates.panels.flatten(0, 1))
        size = (len(candidates.panels), NUM_CANDIDATES, self.batch_size)
        ambiguous = conflict.somewhere.view(size)
        # The number of candidates rejected in a row from the first; the last is never rejected.
        choice = ambiguous[:, :-1].to(torch.int64).cumprod(dim=1).sum(dim=1)  # [P, B]
        rows = choice * self.batch_size + self._offsets
        chosen = []
        for field in candidates:
            flat = field.flatten(2)
            picked = flat.gather(1, rows.unsqueeze(-1).expand(-1, -1, flat.shape[-1]))
            chosen.append(picked.unflatten(-1, field.shape[2:]))
        return Instances(*chosen)

    def _build(self, words: Int32[Tensor, "words p b"]) -> Instances:
        """Instances from their random words.

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
        grids = self._fill(rules, draws)  # [columns, rows, M, P, B]

        if self._permuted:
            permutations = orders[:, 1:].transpose(0, 1)
            grids = grids.gather(2, permutations.unsqueeze(1).expand_as(grids))
        else:
            identity = torch.arange(self._config.num_features, device=grids.device)
            permutations = identity.view(1, -1, 1, 1).expand(grids.shape[0], *rules.shape)
        return Instances(
            panels=grids.permute(3, 4, 1, 0, 2).contiguous(),
            rules=rules.movedim(0, -1).contiguous(),
            permutations=permutations.permute(2, 3, 0, 1).contiguous(),
        )

    def _fill(
        self, rules: Int64[Tensor, "m p b"], draws: Draws
    ) -> Int64[Tensor, "columns rows m p b"]:
        # Every rule fills every grid, and the one that applies is kept: no shape depends on data.
        first, *others = (RULES[name].fill(draws) for name in self._config.rules)
        grids = first
        for number, grid in enumerate(others, start=1):
            grids = torch.where(rules == number, grid, grids)
        return grids.remainder(self._config.num_values)


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

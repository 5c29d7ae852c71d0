"""SRAVEN: symbolic Raven matrices (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor

from hyla.tasks.base import Manifest, Task
from hyla.tasks.registry import register_task
from hyla.tasks.splits import Combination
from hyla.tasks.sraven.combinations import combinations_by_side
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.generator import SravenSampler
from hyla.tasks.sraven.objective import Classification

if TYPE_CHECKING:
    from hyla.tasks.sraven.study import SravenStudy

SIDE_OF_SPLIT = {
    "train": "train",
    "validation": "train",
    "test": "train",
    "ood": "ood",
    "test_unpermuted": "train",
    "ood_unpermuted": "ood",
}
"""The side of the manifest that a split takes its combinations of rules from."""


@register_task("sraven")
class Sraven(Task[SravenSampler]):
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

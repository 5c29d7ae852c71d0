"""SRAVEN as a task of reasoning-gym, with the compositional split as a parameter.

Importing this module registers the task, so that reasoning-gym can make it by name:

>>> import reasoning_gym  # doctest: +SKIP
>>> import hyla.integrations.reasoning_gym  # doctest: +SKIP
>>> train = reasoning_gym.create_dataset("sraven", split="train", seed=0)  # doctest: +SKIP
>>> unseen = reasoning_gym.create_dataset("sraven", split="ood", seed=0)  # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hyla._errors import check_positive
from hyla._optional import needed
from hyla.tasks.randomness import MAX_INSTANCES
from hyla.tasks.sraven import PAPER_RULES, Sraven, SravenConfig
from hyla.tasks.sraven.faces.prompts import parse_answer, score_answer, to_answer, to_prompt
from hyla.tasks.sraven.problem import Problems

with needed("reasoning-gym", "hyla.integrations.reasoning_gym needs reasoning-gym"):
    from reasoning_gym.coaching import (  # pyright: ignore[reportMissingImports]
        BaseCurriculum,
        ScalarAttributeDefinition,
    )
    from reasoning_gym.factory import (  # pyright: ignore[reportMissingImports]
        ProceduralDataset,
        register_dataset,
    )

DATASET_NAME = "sraven"

# Odd, and 2^32 over the golden ratio: its multiples modulo 2^32 are all different, and those of
# consecutive seeds lie far from each other.
_SEED_STRIDE = 0x9E3779B1


@dataclass
class SravenDatasetConfig:
    """Which instances of SRAVEN, and how they are asked and scored.

    `seed` chooses instances and never the split: a dataset that is reseeded (reasoning-gym does so
    to make one endless) keeps holding out the same rule combinations, those of `split_seed`. Item
    i of seed 0 is instance i of (`split`, `split_seed`) everywhere in hyla.
    """

    split: str = "train"
    """train, validation or test: combinations of rules seen in training; ood: held-out ones;
    test_unpermuted, ood_unpermuted: with the features in the same order in all columns."""
    split_seed: int = 0
    """Which combinations of rules are held out."""
    num_features: int = 4
    num_distractors: int = 0
    """Features of random values; what is answered for them does not count."""
    num_values: int = 8
    grid_size: int = 3
    rules: tuple[str, ...] = PAPER_RULES
    permuted: bool = True
    """Whether each column shows the features in an order of its own; without, in any split, all
    columns show them in the order of the last."""
    held_out_fraction: float = 0.25
    unambiguous: bool = False
    """Whether to reject instances whose context allows several answers."""
    explain_rules: bool = True
    """Whether the question lists the rules."""
    partial_credit: bool = False
    """Whether a panel that is right in part scores the share that is right."""
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        """Raise a ValueError that says what is wrong and what would work."""
        check_positive(size=self.size)
        Sraven(self.task()).check_split(self.split)

    def task(self) -> SravenConfig:
        """The part of this that describes the task."""
        return SravenConfig(
            num_features=self.num_features,
            num_distractors=self.num_distractors,
            num_values=self.num_values,
            grid_size=self.grid_size,
            rules=tuple(self.rules),
            held_out_fraction=self.held_out_fraction,
            unambiguous=self.unambiguous,
        )


class SravenDataset(ProceduralDataset):
    """SRAVEN instances as questions and answers; item i is computed from its number alone."""

    def __init__(self, config: SravenDatasetConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)
        self._problems = Problems(config.task(), config.split, seed=config.split_seed)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Item number `idx`: question, answer, and what the instance was made of."""
        number = (self.seed * _SEED_STRIDE + idx) % MAX_INSTANCES
        problem = self._problems[number]
        permuted = problem.permuted and self.config.permuted
        if not permuted:
            problem = problem.in_one_order()
        question = to_prompt(
            problem.panels,
            config=problem.config,
            permuted=permuted,
            explain_rules=self.config.explain_rules,
        )
        return {
            "question": question,
            "answer": to_answer(problem.answer),
            "metadata": {
                "source_dataset": DATASET_NAME,
                "source_index": idx,
                "split": problem.split,
                "split_seed": problem.seed,
                "instance": problem.index,
                "panels": problem.panels,
                "rules": problem.rules,
                "permutations": problem.permutations,
                "scored": problem.scored,
                "difficulty": {
                    "num_features": problem.config.num_features,
                    "num_distractors": problem.config.num_distractors,
                    "num_values": problem.config.num_values,
                    "rules": len(problem.config.rules),
                    "permuted": permuted,
                },
            },
        }

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """Score a reply in [0, 1] by the last panel that it holds."""
        if not isinstance(answer, str):
            return 0.0
        size = self.config.task().panel_size
        target = parse_answer(entry["answer"], size)
        if target is None:
            raise ValueError(
                f"entry['answer'] must be a list of {size} integers, as this dataset writes it, "
                f"got {entry['answer']!r}"
            )
        return score_answer(
            answer,
            target,
            scored=entry["metadata"].get("scored"),  # older entries have no distractors
            partial_credit=self.config.partial_credit,
        )


# Rules that are told apart easily come first; each level has those of the one before.
_LEVELS_OF_RULES = (
    ("constant", "progression+1", "addition"),
    ("constant", "progression+1", "progression-1", "addition", "distribute_three"),
    PAPER_RULES,
)


class SravenCurriculum(BaseCurriculum):
    """Levels of difficulty: features, values, rules, and the order of features in each column."""

    def __init__(self) -> None:
        super().__init__(SravenCurriculum.__name__, SravenDatasetConfig)
        levels = {
            "num_features": ([2, 3, 4, 6, 8], "Features of a panel that follow a rule"),
            "num_values": ([6, 8, 12, 16], "Integers that a feature may show"),
            "rules": (list(_LEVELS_OF_RULES), "Rules that a feature may follow"),
            "permuted": ([False, True], "Whether each column has an order of its own"),
        }
        for name, (values, description) in levels.items():
            attribute = ScalarAttributeDefinition(
                name=name, field_name=name, levels=values, description=description
            )
            self._define_attributes(attribute)  # pyright: ignore[reportArgumentType]


register_dataset(
    DATASET_NAME,
    SravenDataset,
    SravenDatasetConfig,
    SravenCurriculum,  # pyright: ignore[reportArgumentType]  # it takes classes, and says objects
)

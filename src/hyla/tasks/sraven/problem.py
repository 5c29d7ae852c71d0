"""One SRAVEN instance with its address, as plain Python: what every face of the task shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.generator import SravenSampler, is_permuted
from hyla.tasks.sraven.task import Sraven

Panel: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Instance number `index` of a split and seed."""

    config: SravenConfig
    split: str
    seed: int
    index: int
    panels: tuple[tuple[Panel, ...], ...]
    """The grid, `panels[row][column][position]`; the last panel is the answer. Blanks are -1."""
    rules: tuple[str, ...]
    """Name of the rule of each feature, or what has none: "distractor", "blank"."""
    permutations: tuple[Panel, ...]
    """Position m of the panels of column c shows feature `permutations[c][m]`."""

    @property
    def answer(self) -> Panel:
        """The last panel."""
        return self.panels[-1][-1]

    @property
    def scored(self) -> tuple[bool, ...]:
        """Which positions of the answer can be known: those that show what follows a rule."""
        rules = self.config.rules
        return tuple(self.rules[feature] in rules for feature in self.permutations[-1])

    @property
    def permuted(self) -> bool:
        """Whether columns show the features in orders of their own."""
        return is_permuted(self.split)

    @property
    def address(self) -> str:
        """How to find this instance again, in words."""
        return f"{self.split}, seed {self.seed}, instance {self.index}"

    def in_one_order(self) -> Problem:
        """Return the instance with the features of all columns in the order of the last."""
        order = self.permutations[-1]
        panels = tuple(
            tuple(
                tuple(panel[self.position(feature, column)] for feature in order)
                for column, panel in enumerate(row)
            )
            for row in self.panels
        )
        return replace(self, panels=panels, permutations=(order,) * self.config.grid_size)

    def is_query(self, row: int, column: int) -> bool:
        """Whether the panel is the one that is asked for."""
        return row == column == self.config.grid_size - 1

    def position(self, feature: int, column: int) -> int:
        """Where the panels of a column show a feature."""
        return self.permutations[column].index(feature)

    def rows(self, feature: int) -> tuple[Panel, ...]:
        """The values of one feature in each row, its own order restored."""
        columns = range(self.config.grid_size)
        places = [self.position(feature, column) for column in columns]
        return tuple(tuple(row[c][place] for c, place in enumerate(places)) for row in self.panels)


class Problems:
    """The instances of one split and seed, each made when asked for; the same as in batches."""

    def __init__(self, config: SravenConfig, split: str, *, seed: int) -> None:
        self._config, self._split, self._seed = config, split, seed
        self._sampler = Sraven(config).sampler(split, seeds=[seed], batch_size=1)

    def __getitem__(self, index: int) -> Problem:
        return problem_of(
            self._sampler, index, config=self._config, split=self._split, seed=self._seed
        )


def problem_of(
    sampler: SravenSampler, index: int, *, config: SravenConfig, split: str, seed: int
) -> Problem:
    """Instance number `index` of a sampler of single instances; the rest is its address."""
    panels, rules, permutations = sampler.instances(index)
    return Problem(
        config=config,
        split=split,
        seed=seed,
        index=index,
        panels=tuple(tuple(map(tuple, row)) for row in panels[0, 0].tolist()),
        rules=tuple(config.label_names[number] for number in rules[0, 0].tolist()),
        permutations=tuple(map(tuple, permutations[0, 0].tolist())),
    )

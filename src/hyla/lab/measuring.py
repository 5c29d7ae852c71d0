"""What is measured beside scores: on the trained models that are here, at the size of the scale."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hyla.results.conditions import Conditions
from hyla.results.runs import Row, read_run
from hyla.results.subjects import Subject
from hyla.results.tables import MEMBER, Cell

MODEL = ("attention", "seed")
"""Columns that name the trained model which rows are about, among those of one measurement."""


class NotAvailableError(Exception):
    """Something is not here to be measured; the message says how to get it."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """What there is to measure with."""

    conditions: Conditions
    cells: Sequence[Cell]
    root: Path
    """Folder of the run directories."""
    device: torch.device
    deadline: float = math.inf
    """On the monotonic clock: what trains has to stop then, and raise `Interrupted`."""
    stored: Mapping[tuple[str, int], str | None] = field(default_factory=dict)
    """The run of each model, as `MODEL` names them, that the table has rows of; None where those
    do not say it."""
    again: bool = True
    """Whether to measure on those once more, where they are here."""
    say: Callable[[str], None] = print
    """How to tell whoever waits what was left out."""

    @property
    def seconds_left(self) -> float:
        """Time until the deadline."""
        return self.deadline - time.monotonic()

    def size(self, *, smoke: int, laptop: int, paper: int) -> int:
        """Return the number for the scale."""
        return {"smoke": smoke, "laptop": laptop, "paper": paper}[self.conditions.scale]

    def wanted(self, cell: Cell) -> list[Row]:
        """Return the cell's picked models to measure on, of those whose runs are under `root`.

        What was trained elsewhere may have left its scores alone.
        """
        return [
            row
            for row in cell.picked
            if self._here(row) and (self.again or not self._is_stored(cell, row))
        ]

    def best(self, cell: Cell) -> Row | None:
        """Return the model that is best on validation, of those measured here or before."""
        known = [row for row in cell.picked if self._here(row) or self._is_stored(cell, row)]
        return max(known, key=cell.validated, default=None)

    def _here(self, row: Row) -> bool:
        return (self.root / row["run"]).exists()

    def _is_stored(self, cell: Cell, row: Row) -> bool:
        """Whether the table has rows of it; another of its seed may have been picked since."""
        model = str(cell.config.model.attention), row["seed"]
        return model in self.stored and self.stored[model] in (None, row["run"])

    def subjects(self, cell: Cell) -> Iterator[Subject]:
        """Yield the models that are `wanted`."""
        for row in self.wanted(cell):
            path = self.root / row["run"]
            wanted = {name: row[name] for name in MEMBER}
            member = read_run(path).members.index(wanted)
            yield Subject.of_run(path, member, device=self.device)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """How to measure something, and the name of its table; experiments may share one."""

    name: str
    measure: Callable[[Measuring], list[Row]]
    announce: Callable[[Conditions, Path], str] | None = None
    """Say, of the folder of the runs, what it takes that no estimate of populations has."""
    gpu_seconds: Callable[[Conditions, Path | None], float] | None = None
    """Estimate what it still trains itself on a GPU, given the folder of the runs if there is
    one."""
    key: Sequence[str] = ()
    """Columns that say what rows are about. Those about the same are replaced together, and
    earlier ones about something else stay; without a key, none does."""
    of_runs: bool = False
    """Whether its rows are read from all the runs that are here: so often as they are asked for,
    as there may be more of them, or longer ones, each time."""

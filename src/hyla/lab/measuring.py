"""What is measured beside scores: on the trained models that are here, at the size of the scale."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hyla.results.conditions import Conditions
from hyla.results.runs import Row, read_run
from hyla.results.subjects import Subject
from hyla.results.tables import MEMBER, Cell


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
    say: Callable[[str], None] = print
    """How to tell whoever waits what was left out."""

    @property
    def seconds_left(self) -> float:
        """Time until the deadline."""
        return self.deadline - time.monotonic()

    def size(self, *, smoke: int, laptop: int, paper: int) -> int:
        """Return the number for the scale."""
        return {"smoke": smoke, "laptop": laptop, "paper": paper}[self.conditions.scale]

    def here(self, cell: Cell) -> list[Row]:
        """Return the cell's picked models whose runs are under `root`, best first.

        What was trained elsewhere may have left its scores alone.
        """
        ranked = sorted(cell.picked, key=cell.validated, reverse=True)
        return [row for row in ranked if (self.root / row["run"]).exists()]

    def subjects(self, cell: Cell) -> Iterator[Subject]:
        """Yield the models that are here, best first."""
        for row in self.here(cell):
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
    key: Sequence[str] = ()
    """Columns that tell rows apart: earlier rows of other keys then stay. Without, none does."""

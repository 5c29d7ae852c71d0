"""A sweep: an experiment without a name, whose models make one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyla.lab.methods import Method, expand, read_sweep
from hyla.lab.plan.pipeline import Job, Outcome, Watch
from hyla.results.sweep_table import write_table


@dataclass(frozen=True, kw_only=True)
class Sweep(Job):
    """Every combination of a grid of settings, and the best of them, chosen on validation."""

    grid: Path | Mapping[str, Any]
    """YAML file with task, scale, set (settings over the preset) and grid (lists of values), or
    what would be in it."""
    out: Path = Path("results")
    """Folder of the table, which has the name of the grid's file."""

    def __post_init__(self):
        super().__post_init__()
        _ = self.methods  # a mistake in the grid shows now

    def asked(self) -> list[Method]:
        """Return the methods of the grid."""
        if isinstance(self.grid, Mapping):
            return expand(self.grid)
        return read_sweep(self.grid)

    @property
    def headline(self) -> str:
        """The score by which settings are chosen; one for all, since a sweep has one task."""
        return self.methods[0].config.build_task().headline

    def collect(self, outcome: Outcome, *, trained: bool, deadline: float, watch: Watch) -> None:
        """Leave it to `write`: the table is the runs', whatever it held before."""

    def write(self, outcome: Outcome) -> list[Path]:
        """Write a row for each finished model; return the files, none without any model."""
        name = "sweep" if isinstance(self.grid, Mapping) else self.grid.stem
        rows = outcome.rows
        return write_table(rows, self.out / name) if rows else []

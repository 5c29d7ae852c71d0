"""What was measured, as small tables that can be committed, and what an experiment sees of them.

A store is a folder with one folder for each `Conditions` in it::

    results/lab/paper-tf32/
      models-fuzzy.csv      a row per trained model: settings, seed, step, metrics, origin
      curves-fuzzy.csv      a row per model and evaluation
      ceilings.csv          the best accuracy possible on SRAVEN, by the exact solver
      fig2b.csv             what else an experiment measured, by its name
      origins/o1f0c9a52.csv device, versions and commit of the rows that name it

Rows are keyed by what they are about, so collecting twice, or from two machines, adds nothing
twice. Figures and the report are made from these tables alone.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyla.results.conditions import Conditions
from hyla.results.origins import read_with_origins, write_with_origins
from hyla.results.runs import Row, StoredRun, curve_rows, final_rows
from hyla.results.selection import (
    HYPERPARAMETERS,
    Estimate,
    best_hyperparameters,
    compared_hyperparameters,
    estimate,
    hyperparameters_of,
    validation_metric,
)
from hyla.training import Member, TrainConfig, config_from_tree
from hyla.training.identity import method_key, task_key

MEMBER = tuple(field.name for field in dataclasses.fields(Member))
"""What identifies a model among those of its method."""


# --- the tables of some conditions ----------------------------------------------------------


class Tables:
    """The tables of some conditions."""

    def __init__(self, store: Path, conditions: Conditions):
        self.conditions = conditions
        self.folder = store / conditions.label
        # Every experiment looks at the same tables.
        self._read: dict[Path, list[Row]] = {}

    def models(self) -> list[Row]:
        """Return a row per trained model, of all tasks."""
        return self._of_all_tasks("models")

    def curves(self) -> list[Row]:
        """Return a row per model and evaluation, of all tasks."""
        return self._of_all_tasks("curves")

    def measured(self, name: str) -> list[Row]:
        """Return what the experiment (or `ceilings`) measured beside the models' scores."""
        return self._rows(self.folder / f"{name}.csv")

    def add_runs(self, runs: Iterable[StoredRun]) -> None:
        """Put finished runs in; a model that is there already is replaced."""
        models: dict[str, list[Row]] = {}
        curves: dict[str, list[Row]] = {}
        for run in runs:
            config = config_from_tree(run.config)
            models.setdefault(config.task_name, []).extend(_model_rows(run, config))
            curves.setdefault(config.task_name, []).extend(_curve_rows(run, config))
        for task, rows in models.items():
            self._merge(f"models-{task}", rows, key=("method", *MEMBER))
        for task, rows in curves.items():
            self._merge(f"curves-{task}", rows, key=("method", *MEMBER, "step"))

    def add_measured(self, name: str, rows: Sequence[Row], *, key: Sequence[str] = ()) -> None:
        """Keep what was measured in place of all before, or of what has the same `key`.

        Many rows may have one, as those about a model: they are replaced together.
        """
        path = self.folder / f"{name}.csv"
        about = {tuple(row[k] for k in key) for row in rows}
        kept = [r for r in self._rows(path) if tuple(r[k] for k in key) not in about] if key else []
        self._write([*kept, *rows], path)

    def _merge(self, name: str, rows: Sequence[Row], key: Sequence[str]) -> None:
        path = self.folder / f"{name}.csv"
        merged = {tuple(row[k] for k in key): row for row in (*self._rows(path), *rows)}
        self._write(list(merged.values()), path)

    def _of_all_tasks(self, table: str) -> list[Row]:
        paths = sorted(self.folder.glob(f"{table}-*.csv"))
        return [row for path in paths for row in self._rows(path)]

    def _rows(self, path: Path) -> list[Row]:
        if path not in self._read:
            self._read[path] = read_with_origins(path)
        return self._read[path]

    def _write(self, rows: Sequence[Row], path: Path) -> None:
        write_with_origins(rows, path)
        self._read.pop(path, None)  # to be read as any other process would read it


def stored_conditions(store: Path) -> list[Conditions]:
    """Return the conditions that have a folder in the store."""
    found = []
    for folder in sorted(path for path in store.glob("*") if path.is_dir()):
        try:
            found.append(Conditions.from_label(folder.name))
        except ValueError:
            continue  # not ours
    return found


def _model_rows(run: StoredRun, config: TrainConfig) -> list[Row]:
    # The last training loss is the mean since the record before: over `log_every` steps.
    losses = [row for row in curve_rows(run) if "loss" in row]
    last = {row["member"]: row["loss"] for row in losses}
    return [
        {"method": method_key(config), "step": row["steps"], **row, "train/loss": last.get(i)}
        for i, row in enumerate(final_rows(run))
    ]


def _curve_rows(run: StoredRun, config: TrainConfig) -> list[Row]:
    headline = config.build_task().headline
    kept = ["loss", *(f"{split}/{headline}" for split in config.evaluation.splits)]
    rows = []
    for row in curve_rows(run):
        # Float32 would take 17 digits to write, and a curve needs a few.
        found = {name: float(f"{row[name]:.6g}") for name in kept if name in row}
        if found.keys() - {"loss"}:
            identity = {name: row[name] for name in (*MEMBER, "step", "seconds")}
            rows.append({"method": method_key(config), **identity, **found})
    return rows


# --- what an experiment sees -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The models of one method, and those at the hyper-parameters that validation picks."""

    config: TrainConfig
    """With all members that the experiment asks for, measured or not."""
    rows: Sequence[Row]
    curves: Sequence[Row]

    @functools.cached_property
    def headline(self) -> str:
        """The task's score: r2 or accuracy."""
        return self.config.build_task().headline

    @functools.cached_property
    def picked(self) -> list[Row]:
        """The models of all seeds at the best hyper-parameters, by validation."""
        best = best_hyperparameters(self.rows, self.headline)
        return [row for row in self.rows if hyperparameters_of(row) == best]

    def validated(self, row: Row) -> float:
        """Return the score of one of its models on the validation split, -∞ if it diverged."""
        score = row[validation_metric(self.rows, self.headline)]
        return -math.inf if math.isnan(score) else score

    def get(self, key: str) -> Any:
        """Return a setting of the config, `a.b`; as a keyword it is written `a__b`."""
        return functools.reduce(getattr, key.replace("__", ".").split("."), self.config)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The picked ones, by name."""
        return {name: self.picked[0][name] for name in HYPERPARAMETERS}

    @property
    def searched(self) -> tuple[int, int]:
        """How many hyper-parameter settings were compared, of how many that the grid has."""
        asked_for = {hyperparameters_of(vars(member)) for member in self.config.members}
        return len(compared_hyperparameters(self.rows)), len(asked_for)

    @property
    def instances(self) -> int:
        """Problem instances that each model was trained on."""
        return self.config.steps * self.config.batch_size

    def score(self, metric: str) -> Estimate | None:
        """Mean and standard error over the seeds; None where it was not measured.

        The mean is NaN where a seed diverged to no number; such settings are picked only if there
        are no others.
        """
        rows = [row for row in self.picked if row.get(metric) is not None]
        return estimate(rows, metric) if rows else None

    @property
    def ood(self) -> Estimate | None:
        """The score on unseen compositions."""
        return self.score(f"ood/{self.headline}")

    @property
    def seen(self) -> Estimate | None:
        """The score on new instances of training compositions."""
        return self.score(f"test/{self.headline}")


@dataclass(frozen=True, kw_only=True)
class Results:
    """What the store holds for one experiment under some conditions."""

    conditions: Conditions
    cells: Sequence[Cell]
    """Of the methods that have at least one finished model."""
    rows: Sequence[Row]
    """What the experiment measured beside them."""
    ceilings: Mapping[str, Estimate]
    """Best possible OOD accuracy, by `method_key` of the SRAVEN cells."""

    def find(self, **settings: Any) -> Cell | None:
        """Return the first cell whose config has these values, `a__b=...` or `**{"a.b": ...}`."""
        return next(iter(where(self.cells, **settings)), None)

    def ood(self, **settings: Any) -> Estimate | None:
        """Return the OOD score of the cell that `find` finds; None without."""
        cell = self.find(**settings)
        return None if cell is None else cell.ood

    def ceiling(self, cell: Cell) -> Estimate | None:
        """Return the best possible OOD accuracy on the cell's task; None if not computed."""
        return self.ceilings.get(method_key(cell.config))


def where(cells: Sequence[Cell], **settings: Any) -> list[Cell]:
    """Return the cells whose configs have these values, `a__b=...` or `**{"a.b": ...}`."""
    return [
        cell for cell in cells if all(cell.get(key) == value for key, value in settings.items())
    ]


def cells_of(configs: Sequence[TrainConfig], tables: Tables) -> list[Cell]:
    """Return a cell for each method that has finished models in the tables."""
    models, curves = _by_method(tables.models()), _by_method(tables.curves())
    cells = []
    for config in configs:
        key = method_key(config)
        if key in models:
            cells.append(Cell(config=config, rows=models[key], curves=curves.get(key, [])))
    return cells


def _by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["method"], []).append(row)
    return grouped


def ceilings_of(cells: Sequence[Cell], tables: Tables) -> dict[str, Estimate]:
    """Return the mean ceiling over the splits of the seeds, for each SRAVEN cell that has one."""
    known: dict[str, list[Row]] = {}
    for row in tables.measured("ceilings"):
        known.setdefault(row["task"], []).append(row)
    found = {}
    for cell in cells:
        rows = known.get(task_key(cell.config))
        if rows:
            error = max(row["ceiling_se"] for row in rows)
            found[method_key(cell.config)] = Estimate(
                statistics.fmean(row["ceiling"] for row in rows), error
            )
    return found

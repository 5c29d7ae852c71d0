"""What is measured beside scores, from the models under a root into the store's tables."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyla.lab.experiment import Experiment
from hyla.lab.measuring import Measuring, NotAvailableError
from hyla.lab.methods import results_of
from hyla.results.ceilings import ceiling_rows
from hyla.results.origins import measured_with
from hyla.results.runs import Row
from hyla.results.tables import Tables
from hyla.training.devices import resolve_device
from hyla.training.identity import task_key


def collect_ceilings(experiments: Sequence[Experiment], tables: Tables, device: str) -> None:
    """Compute the ceiling, if it can be, of every task with a measured model and none yet."""
    known = {row["task"] for row in tables.measured("ceilings")}
    for experiment in experiments:
        for cell in results_of(experiment, tables).cells:
            task = task_key(cell.config)
            if task in known:
                continue
            known.add(task)
            if rows := ceiling_rows(cell.config, device=device):
                tables.add_measured(
                    "ceilings",
                    [
                        {"task": task, **row, **measured_with(resolve_device(device))}
                        for row in rows
                    ],
                    key=("task", "seed"),
                )


def measure(
    experiment: Experiment, tables: Tables, *, root: Path, device: str, deadline: float = math.inf
) -> int:
    """Measure what the experiment asks for beside scores; return the number of rows.

    Raises:
        NotAvailableError: the table holds models that are not here. It is left as it is, and
            nothing is measured in vain.
    """
    if experiment.measurement is None:
        return 0
    measuring = Measuring(
        conditions=tables.conditions,
        cells=results_of(experiment, tables).cells,
        root=root,
        device=resolve_device(device),
        deadline=deadline,
    )
    name, key = experiment.measurement.name, experiment.measurement.key
    stored = [] if key else tables.measured(name)  # what could be lost
    if measuring.cells:  # else it is about no models, or about those that it trains, as Figure 6
        _check_none_lost(stored, _models_here(measuring), root)
    rows = experiment.measurement.measure(measuring)
    if rows:
        _check_none_lost(stored, rows, root)
        whence = measured_with(resolve_device(device))
        tables.add_measured(name, [{**whence, **row} for row in rows], key=key)
    return len(rows)


def _models_here(measuring: Measuring) -> list[Row]:
    return [
        {"attention": str(cell.config.model.attention), "seed": row["seed"]}
        for cell in measuring.cells
        for row in measuring.here(cell)
    ]


def _check_none_lost(stored: Sequence[Row], rows: Sequence[Row], root: Path) -> None:
    missing = _measured_models(stored) - _measured_models(rows)
    if missing:
        raise NotAvailableError(
            f"of the models that the table holds, {len(missing)} are not under {root}: it stays. "
            "Copy their runs there and --remeasure, or move the table away"
        )


def _measured_models(rows: Sequence[Row]) -> set[tuple[Any, ...]]:
    """Return what tells the models apart that rows are about: none, if rows are about no models."""
    models = {tuple(row.get(name) for name in ("attention", "seed", "run")) for row in rows}
    return models - {(None, None, None)}

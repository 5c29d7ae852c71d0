"""What is measured beside scores, from the models under a root into the store's tables."""

import math
from collections.abc import Sequence
from pathlib import Path

from hyla.lab.experiment import Experiment
from hyla.lab.measuring import MODEL, Measuring, NotAvailableError
from hyla.lab.methods import results_of
from hyla.results.ceilings import ceiling_rows
from hyla.results.origins import is_dirty, measured_with
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
    experiment: Experiment,
    tables: Tables,
    *,
    root: Path,
    device: str,
    again: bool = True,
    any_origin: bool = True,
    deadline: float = math.inf,
) -> int | None:
    """Measure what the experiment asks for beside scores; return the number of rows.

    Without `again`, what the table has is not measured once more, unless it is read from runs: None
    if nothing else is here. Without `any_origin`, runs that were trained with uncommitted changes
    are left out where rows are read from runs.
    """
    if experiment.measurement is None:
        return None
    measurement, cells = experiment.measurement, results_of(experiment, tables).cells
    stored = tables.measured(measurement.name)
    of_models = measurement.key == MODEL
    measuring = Measuring(
        conditions=tables.conditions,
        cells=cells,
        root=root,
        device=resolve_device(device),
        deadline=deadline,
        stored={(row["attention"], row["seed"]): row.get("run") for row in stored if of_models},
        again=again,
    )
    known = bool(stored) and not again
    more = measurement.of_runs or (of_models and any(measuring.wanted(cell) for cell in cells))
    if known and not more:
        return None
    try:
        rows = measurement.measure(measuring)
    except NotAvailableError:
        if known:
            return None
        raise
    if measurement.of_runs and not any_origin:
        rows = _of_commits(rows, measuring, measurement.name)
    if known and not rows:
        return None
    if rows:
        whence = measured_with(resolve_device(device))
        whole = [{**whence, **row} for row in rows]
        tables.add_measured(measurement.name, whole, key=measurement.key)
    return len(rows)


def _of_commits(rows: Sequence[Row], measuring: Measuring, name: str) -> list[Row]:
    """Return the rows whose runs a commit can reproduce, and say how many runs have none."""
    dirty = {row["run"] for row in rows if is_dirty(row["git_commit"])}
    if dirty:
        measuring.say(
            f"{name} leaves {len(dirty)} runs under {measuring.root} out, which were trained with "
            "uncommitted changes: --allow-dirty takes them, and the report marks it"
        )
    return [row for row in rows if row["run"] not in dirty]

"""What questions beyond the paper share: variants of a model side by side, on both tasks."""

from collections.abc import Callable, Sequence
from typing import Any

from hyla.figures.drawing import Figure, Table
from hyla.lab.claims import percent
from hyla.lab.experiments.shared.panels import bars, ceiling_levels
from hyla.lab.grids import sweep
from hyla.results.tables import Cell, Results

TASKS = {"fuzzy": ("fuzzy logic", "R²"), "sraven": ("SRAVEN", "accuracy")}


def on_both_tasks(key: str, values: Sequence[Any]) -> Callable[[str], list[dict[str, Any]]]:
    """Return sweeps over one setting, at each task's own preset."""
    return lambda scale: [sweep(task, scale, grid={key: values}) for task in TASKS]


def variant_figure(results: Results, name: Callable[[Cell], str]) -> Figure | None:
    """Return a panel for each task: seen and unseen compositions, for each variant."""
    panels = []
    for task, (title, score) in TASKS.items():
        cells = [cell for cell in results.cells if cell.config.task_name == task]
        if cells:
            panels.append(
                bars(
                    [(name(cell), cell) for cell in cells],
                    [("unseen compositions", "ood/*"), ("seen compositions", "test/*")],
                    title=title,
                    y_label=score,
                    levels=ceiling_levels(results, cells),
                    y_range=(0, 1),
                )
            )
    return Figure(panels=[panels]) if panels else None


def variant_table(
    results: Results, name: Callable[[Cell], str], **columns: Callable[[Cell], str]
) -> Table | None:
    """Return a row per variant: scores, training loss, and what `columns` add."""
    if not results.cells:
        return None
    rows = []
    for cell in results.cells:
        loss = cell.score("train/loss")
        rows.append(
            [
                TASKS[cell.config.task_name][0],
                name(cell),
                "" if cell.ood is None else percent(cell.ood),
                "" if cell.seen is None else percent(cell.seen),
                "" if loss is None else f"{loss.mean:.3g}",
                *(column(cell) for column in columns.values()),
            ]
        )
    heads = ["task", "variant", "OOD", "seen", "training loss", *columns]
    return Table(columns=[head.replace("_", " ") for head in heads], rows=rows)

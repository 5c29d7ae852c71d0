"""What questions beyond the paper share: variants of a model side by side, on its tasks."""

from collections.abc import Callable, Mapping
from typing import Any

from hyla.figures.drawing import Figure, Table
from hyla.lab.claims import Claim, ahead, percent
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import bars, ceiling_levels, score_name, score_of
from hyla.lab.grids import METHODS, sweep
from hyla.results.selection import Estimate
from hyla.results.tables import Cell, Results, where
from hyla.tasks import FuzzyLogic, FuzzyLogicConfig, Sraven, SravenConfig, Task, task_class

TASKS: Mapping[str, Task] = {
    "fuzzy": FuzzyLogic(FuzzyLogicConfig()),
    "sraven": Sraven(SravenConfig()),
}
"""The paper's two, by name."""
_BARS = (("unseen compositions", "ood/*"), ("seen compositions", "test/*"))


def hyla_ahead(text: str, results: Results, **settings: Any) -> list[Claim]:
    """Claim that HYLA is ahead of softmax and linear attention, all with these settings."""
    ood = {method: results.ood(model__attention=method, **settings) for method in METHODS}
    return ahead(text, ("HYLA", ood.pop("hyla")), ood)


def variant_figure(results: Results, name: Callable[[Cell], str]) -> Figure | None:
    """Return a panel for each task: seen and unseen compositions, for each variant."""
    measured = [
        (name, metric)
        for name, metric in _BARS
        if any(score_of(cell, metric) is not None for cell in results.cells)
    ]
    panels = []
    for task in dict.fromkeys(cell.config.task_name for cell in results.cells):
        cells = where(results.cells, task_name=task)
        panels.append(
            bars(
                [(name(cell), cell) for cell in cells],
                measured,
                title=task_class(task).title,
                y_label=score_name(cells[0].headline),
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
                task_class(cell.config.task_name).title,
                name(cell),
                percent(cell.ood),
                percent(cell.seen),
                "" if loss is None else f"{loss.mean:.3g}",
                *(column(cell) for column in columns.values()),
            ]
        )
    heads = ["task", "variant", "OOD", "seen", "training loss", *columns]
    return Table(columns=[head.replace("_", " ") for head in heads], rows=rows)


_Scores = dict[str, Estimate | None]
"""OOD scores, by what the presets are called."""


def presets_compared(
    presets: Mapping[str, str],
    claims: Callable[[str, _Scores], list[Claim]],
    *,
    name: str,
    title: str,
    shows: str,
) -> Experiment:
    """Return an experiment on attention presets, named so, at each task's own preset.

    `claims` is given a task's title and the scores on it.
    """

    def named(cell: Cell) -> str:
        return presets[str(cell.config.model.attention)]

    def sweeps(scale: str) -> list[dict[str, Any]]:
        return [sweep(task, scale, grid={"model.attention": list(presets)}) for task in TASKS]

    def claimed(results: Results) -> list[Claim]:
        found = []
        for task, known in TASKS.items():
            scores = {
                label: results.ood(task_name=task, model__attention=attention)
                for attention, label in presets.items()
            }
            found += claims(known.title, scores)
        return found

    return Experiment(
        name=name,
        title=title,
        shows=shows,
        sweeps=sweeps,
        figure=lambda results: variant_figure(results, named),
        table=lambda results: variant_table(results, named),
        claims=claimed,
    )

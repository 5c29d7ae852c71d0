"""Panels that several figures share."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from hyla.figures.drawing import METHOD_COLOURS, PALETTE, Bars, Level, Lines, Series
from hyla.lab.claims import percent
from hyla.lab.grids import LABELS, METHODS, OUR_LABELS
from hyla.results.selection import Estimate
from hyla.results.tables import Cell, Results


def label_of(attention: Any) -> str:
    """Return what the paper calls an attention preset, and how a variant differs from it."""
    preset, *changes = str(attention).split(".")
    label = (LABELS | OUR_LABELS).get(preset, preset)
    return f"{label} ({' '.join(changes)})" if changes else label


def score_name(headline: str) -> str:
    """Return a headline metric as one writes it."""
    return "R²" if headline == "r2" else headline.replace("_", " ")


def half_bar(value: Estimate | None) -> float:
    """Length of an error bar's half: none for a single seed."""
    return 0.0 if value is None or math.isnan(value.standard_error) else value.standard_error


def series(name: str, scores: Sequence[Estimate | None], colour: str, **options: Any) -> Series:
    """Return scores as a series; what was not measured leaves a gap."""
    return Series(
        name=name,
        y=[math.nan if score is None else score.mean for score in scores],
        errors=[half_bar(score) for score in scores],
        colour=colour,
        **options,
    )


def at(key: str) -> Callable[[Cell], Any]:
    """Return the function that reads a setting of a cell's config."""
    return lambda cell: cell.get(key)


def lines_by_method(
    cells: Sequence[Cell],
    *,
    x: Callable[[Cell], float],
    metric: str = "ood/*",
    title: str,
    x_label: str,
    y_label: str = "OOD accuracy",
    levels: Sequence[Level] = (),
    y_range: tuple[float, float] | None = (0, 1),
    methods: Sequence[str] = METHODS,
) -> Lines:
    """Return a line for each method, by default the paper's three, over `x`, what was varied.

    `metric` may leave the score open: `ood/*` is the OOD score of the task.
    """
    positions = sorted({x(cell) for cell in cells})
    lines = []
    others = (method for method in methods if method not in METHOD_COLOURS)
    colours = METHOD_COLOURS | dict(zip(others, PALETTE[len(METHOD_COLOURS) :], strict=False))
    for method in methods:
        own = {x(cell): cell for cell in cells if cell.config.model.attention == method}
        if own:
            scores = [score_of(own.get(position), metric) for position in positions]
            lines.append(series(label_of(method), scores, colours[method]))
    return Lines(
        title=title,
        x_label=x_label,
        y_label=y_label,
        x=positions,
        series=lines,
        levels=levels,
        y_range=y_range,
    )


def score_of(cell: Cell | None, metric: str) -> Estimate | None:
    """Return a score of a cell that may not be there."""
    return None if cell is None else cell.score(metric.replace("*", cell.headline))


def each_seed(cell: Cell, metric: str = "ood/*") -> str:
    """List the scores behind a mean, in percent: some runs sit on a plateau that others left."""
    name = metric.replace("*", cell.headline)
    rows = sorted((r for r in cell.picked if r.get(name) is not None), key=lambda r: r["seed"])
    return ", ".join(percent(Estimate(row[name], math.nan)) for row in rows)


def bars(
    cells: Sequence[tuple[str, Cell]],
    metrics: Sequence[tuple[str, str]],
    *,
    title: str,
    y_label: str,
    levels: Sequence[Level] = (),
    y_range: tuple[float, float] | None = None,
) -> Bars:
    """Return a group of bars for each named cell, one bar for each (name, metric)."""
    return Bars(
        title=title,
        y_label=y_label,
        x=[name for name, _ in cells],
        series=[
            series(name, [score_of(cell, metric) for _, cell in cells], PALETTE[i])
            for i, (name, metric) in enumerate(metrics)
        ],
        levels=levels,
        y_range=y_range,
    )


def ceiling_levels(results: Results, cells: Sequence[Cell]) -> list[Level]:
    """Return the exact solver's accuracy as a line, where all cells share the task."""
    found = [results.ceiling(cell) for cell in cells]
    means = {round(ceiling.mean, 6) for ceiling in found if ceiling is not None}
    if len(means) != 1 or None in found:
        return []
    return [Level(name="best possible", y=means.pop())]

"""Panels of latent codes that several figures share."""

from collections.abc import Sequence
from typing import Any

from hyla.lab.drawing import METHOD_COLOURS, PALETTE, Figure, Heatmap, Lines, Points, Series
from hyla.lab.grids import METHODS
from hyla.lab.panels import label_of, series
from hyla.lab.results import Results
from hyla.lab.selection import Estimate, estimate
from hyla.lab.store import Row
from hyla.tasks.sraven.rules import PAPER_RULES

READINGS = {
    "ood_fixed_query": "one query point for all functions",
    "ood_fixed_context": "one context for all functions, as the paper's text has it",
}
"""How the codes of fuzzy logic are read: the split of unseen functions, and what it means."""

# More classes than this are coloured by their number, without a legend.
_MOST_NAMED = 12


def rows_of(results: Results, **wanted: object) -> list[Row]:
    """Return the measured rows with these values."""
    return [
        row for row in results.rows if all(row.get(name) == value for name, value in wanted.items())
    ]


def last_layer(rows: Sequence[Row]) -> int:
    """Return the number of the last layer in the rows."""
    return max(row["layer"] for row in rows)


def methods_in(rows: Sequence[Row]) -> list[str]:
    """Return the methods of the rows, in the usual order."""
    found = {row["attention"] for row in rows}
    return [method for method in METHODS if method in found]


def cloud(rows: Sequence[Row], colour: str, title: str) -> Points:
    """Return embedded codes coloured by one of their labels."""
    values = [row[colour] for row in rows]
    names = sorted({value for value in values if isinstance(value, str)})
    if len(names) > _MOST_NAMED:
        values = [names.index(value) for value in values]
    return Points(
        title=title,
        x=[row["x"] for row in rows],
        y=[row["y"] for row in rows],
        colour=values,
        colour_label=colour,
    )


def figure_of_codes(
    results: Results, colours: dict[str, str], *, all_layers: bool, note: str = ""
) -> Figure | None:
    """Return a row of panels for each colour (label → what it is called): methods, then layers."""
    embedded = rows_of(results, what="embedding")
    if not embedded:
        return None
    panels = []
    for colour, name in colours.items():
        row = []
        for method in methods_in(embedded):
            own = [r for r in embedded if r["attention"] == method]
            layers = sorted({r["layer"] for r in own}) if all_layers else [last_layer(own)]
            row += [
                cloud(
                    [r for r in own if r["layer"] == layer],
                    colour,
                    f"{label_of(method)}, layer {layer + 1}, by {name}",
                )
                for layer in layers
            ]
        panels.append(row)
    seeds = {row["attention"]: row["seed"] for row in embedded}
    whose = ", ".join(f"{label_of(method)} seed {seeds[method]}" for method in methods_in(embedded))
    note = f"{note} Codes of the model of each method that is best on validation: {whose}."
    return Figure(panels=panels, note=note.strip())


def matrix(
    rows: Sequence[Row],
    *,
    row: str,
    column: str,
    value: str,
    title: str,
    label: str,
    value_range: tuple[float, float] | None = None,
) -> Heatmap:
    """Return the rows as a matrix, averaged over seeds; what was not measured is a gap.

    Rules have their usual order.
    """
    names, columns = (_in_order({r[key] for r in rows}) for key in (row, column))

    def at(name: Any, other: Any) -> float:
        mean = mean_of([r for r in rows if (r[row], r[column]) == (name, other)], value)
        return float("nan") if mean is None else mean.mean

    return Heatmap(
        title=title,
        values=[[at(name, other) for other in columns] for name in names],
        rows=[str(name) for name in names],
        columns=[str(column) for column in columns],
        label=label,
        value_range=value_range,
    )


def _in_order(names: set[Any]) -> list[Any]:
    return sorted(names, key=lambda n: (PAPER_RULES.index(n) if n in PAPER_RULES else -1, n))


def mean_of(rows: Sequence[Row], value: str = "value") -> Estimate | None:
    """Return mean and standard error over the rows, which differ in their seeds."""
    measured = [row for row in rows if row.get(value) is not None]
    return estimate(measured, value) if measured else None


def f1_by_layer(results: Results, label: str, split: str) -> Lines | None:
    """Return the F1 score of decoding `label` from the codes of each layer, for each method."""
    codes = rows_of(results, predictor="code", metric="f1", label=label, split=split)
    if not codes:
        return None
    layers = sorted({row["layer"] for row in codes})
    lines: list[Series] = [
        series(
            label_of(method),
            [f1(results, label, split, method, "code", layer) for layer in layers],
            METHOD_COLOURS[method],
        )
        for method in methods_in(codes)
    ]
    return Lines(
        title=f"{label}, decoded from the code",
        x_label="layer",
        y_label="F1 on unseen compositions",
        x=[str(layer + 1) for layer in layers],
        series=lines,
        y_range=(0, 1),
    )


def controls_by_layer(results: Results, label: str, split: str, method: str) -> Lines | None:
    """Return what else the label can be decoded from, beside one method's code."""
    own = rows_of(results, metric="f1", label=label, split=split, attention=method)
    if not own:
        return None
    layers = sorted({row["layer"] for row in own if row["layer"] is not None})
    lines = []
    for i, name in enumerate(dict.fromkeys(row["predictor"] for row in own)):
        # What does not depend on the layer is a level line.
        flat = f1(results, label, split, method, name)
        scores = [flat or f1(results, label, split, method, name, layer) for layer in layers]
        colour = PALETTE[i % len(PALETTE)]
        lines.append(series(name, scores, colour, dashed=name != "code"))
    return Lines(
        title=f"{label}, {label_of(method)}: code and controls",
        x_label="layer",
        y_label="F1 on unseen compositions",
        x=[str(layer + 1) for layer in layers],
        series=lines,
        y_range=(0, 1),
    )


def f1(
    results: Results,
    label: str,
    split: str,
    method: str,
    predictor: str,
    layer: int | None = None,
) -> Estimate | None:
    """Return the mean over seeds of one decoding score."""
    return mean_of(
        rows_of(
            results,
            metric="f1",
            label=label,
            split=split,
            attention=method,
            predictor=predictor,
            layer=layer,
        )
    )

"""Panels of latent codes: what the experiments and `hyla latents` draw of the same tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from hyla.figures.drawing import (
    METHOD_COLOURS,
    PALETTE,
    Heatmap,
    Level,
    Lines,
    Panel,
    Points,
    Series,
)
from hyla.lab.experiments.shared.panels import series
from hyla.latents.measures.swaps import CODES
from hyla.results.runs import Row
from hyla.results.selection import Estimate, estimate
from hyla.tasks.sraven.rules import PAPER_RULES

_P = TypeVar("_P", bound=Panel)

RATES = {"donor": "follows the donor", "stay": "stays", "copy": "copies the donor's answer"}
"""What is counted of swaps."""

_WIDEST = 6
"""Most panels in a row that can still be read."""


def chosen(rows: Sequence[Row], **wanted: object) -> list[Row]:
    """Return the rows with these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def layers_in(rows: Sequence[Row], column: str = "layer") -> list[int]:
    """Return the layers of the rows, those aside that belong to none."""
    return sorted({row[column] for row in rows} - {None})


def mean_of(rows: Sequence[Row], value: str = "value") -> Estimate | None:
    """Return mean and standard error over the rows, which differ in their seeds."""
    measured = [row for row in rows if row.get(value) is not None]
    return estimate(measured, value) if measured else None


def clouds(
    shown: Mapping[str, Sequence[Row]], colours: Mapping[str, str], *, noted: Sequence[str] = ()
) -> list[list[Points]]:
    """Return a panel for each colour (label → what it is called), each model and each layer.

    `shown` has the embedded codes of each model by its name. A page says the labels `noted` of
    each point.
    """
    among = [row for rows in shown.values() for row in rows]
    class_colours = _class_colours(among, list(colours))
    panels = []
    for label, name in colours.items():
        by_model = [
            [
                _cloud(
                    chosen(rows, layer=layer),
                    label,
                    f"{model}{', ' if model else ''}layer {layer + 1}\nby {name}",
                    among=among,
                    class_colours=class_colours,
                    noted=noted,
                )
                for layer in layers_in(rows)
            ]
            for model, rows in shown.items()
        ]
        panels += in_rows(by_model)
    return panels


def _class_colours(rows: Sequence[Row], labels: Sequence[str]) -> dict[str, str]:
    """Return a colour for each class of the labels, as far as there are colours to tell apart.

    Labels with few classes come first: all of a label's are coloured, or none.
    """
    classes = [{row[label] for row in rows if isinstance(row[label], str)} for label in labels]
    named: set[str] = set()
    for names in sorted(classes, key=len):
        if len(named | names) <= len(PALETTE):
            named |= names
    return dict(zip(_in_order(named), PALETTE, strict=False))


def _cloud(
    rows: Sequence[Row],
    label: str,
    title: str,
    *,
    among: Sequence[Row],
    class_colours: Mapping[str, str],
    noted: Sequence[str],
) -> Points:
    """Return embedded codes coloured by one of their labels, the same in every panel.

    `among` has all that there is. Classes without a colour of their own are coloured as numbers.
    """
    classes = _in_order({row[label] for row in among})
    named = all(name in class_colours for name in classes)
    # Positions in alphabetical order, where there are too many names.
    numbers = {c: i if isinstance(c, str) else c for i, c in enumerate(sorted(classes))}
    scale: list[float] = [] if named else sorted(numbers.values())
    return Points(
        title=title,
        x=[row["x"] for row in rows],
        y=[row["y"] for row in rows],
        values=[row[label] if named else numbers[row[label]] for row in rows],
        label=label,
        class_colours={name: class_colours[name] for name in classes} if named else {},
        value_range=None if named else (scale[0], scale[-1]),
        notes=["\n".join(f"{name}: {row[name]}" for name in noted) for row in rows],
    )


def in_rows(groups: Sequence[Sequence[_P]]) -> list[list[_P]]:
    """Return the panels in rows, as words in lines: a group is broken only if it is too wide."""
    rows: list[list[_P]] = [[]]
    for group in groups:
        for start in range(0, len(group), _WIDEST):
            part = group[start : start + _WIDEST]
            if len(rows[-1]) + len(part) > _WIDEST:
                rows.append([])
            rows[-1] += part
    return rows


def _in_order(names: set[Any]) -> list[Any]:
    return sorted(names, key=lambda n: (PAPER_RULES.index(n) if n in PAPER_RULES else -1, n))


def matrix(
    rows: Sequence[Row],
    *,
    row: str,
    column: str,
    value: str,
    title: str,
    label: str,
    value_range: tuple[float, float] | None = None,
    **options: Any,
) -> Heatmap:
    """Return the rows as a matrix, averaged over seeds; what was not measured is a gap.

    Rules have their usual order.
    """
    names, columns = (_in_order({r[key] for r in rows}) for key in (row, column))
    cells: dict[tuple[Any, Any], list[Row]] = {}
    for one in rows:
        cells.setdefault((one[row], one[column]), []).append(one)

    def at(*cell: Any) -> float:
        mean = mean_of(cells.get(cell, ()), value)
        return float("nan") if mean is None else mean.mean

    return Heatmap(
        title=title,
        values=[[at(name, other) for other in columns] for name in names],
        rows=[str(name) for name in names],
        columns=[str(column) for column in columns],
        label=label,
        value_range=value_range,
        **options,
    )


def code_map(
    rows: Sequence[Row],
    operation: str,
    *,
    title: str,
    label: str = "code",
    value_range: tuple[float, float] | None = None,
) -> Heatmap:
    """Return codes below each other, by operation: the first of each carries its name."""
    codes: dict[tuple[Any, int], dict[int, float]] = {}
    for row in rows:
        code = codes.setdefault((row[operation], row.get("sample") or 0), {})
        code[row["coordinate"]] = row["value"]
    names = _in_order({name for name, _ in codes})
    ordered = sorted(codes, key=lambda code: (names.index(code[0]), code[1]))
    return Heatmap(
        title=title,
        values=[list(codes[code].values()) for code in ordered],
        rows=[str(name) if sample == 0 else "" for name, sample in ordered],
        columns=[str(coordinate) for coordinate in codes[ordered[0]]],
        label=label,
        value_range=value_range,
        x_label="coordinate of the code",
        signed=True,
    )


def decoded_by_layer(
    rows: Sequence[Row],
    *,
    title: str,
    metric: str,
    code: tuple[str, str, bool],
    controls: Sequence[str],
) -> Lines | None:
    """Return the scores of the code, by its name, colour and dashes, and of the controls."""
    free = [colour for colour in PALETTE if colour not in METHOD_COLOURS.values()]
    lines = {"code": code}
    lines |= {name: (name, colour, True) for name, colour in zip(controls, free, strict=False)}
    return scores_by_layer(rows, "predictor", lines, title, metric)


def scores_by_layer(
    rows: Sequence[Row],
    column: str,
    lines: Mapping[str, tuple[str, str, bool]],
    title: str,
    metric: str,
) -> Lines | None:
    """Return a line for each value of a column: its name, its colour, and whether it is dashed."""
    if not rows:
        return None
    layers = layers_in(rows)

    def line(value: str, name: str, colour: str, dashed: bool) -> Series:
        own = chosen(rows, **{column: value})
        flat = mean_of(chosen(own, layer=None))  # what does not depend on the layer
        scores = [flat or mean_of(chosen(own, layer=layer)) for layer in layers]
        return series(name, scores, colour, dashed=dashed)

    return Lines(
        title=title,
        x_label="layer",
        y_label=f"{metric} on unseen compositions",
        x=[str(layer + 1) for layer in layers],
        series=[line(value, *how) for value, how in lines.items()],
        y_range=(0, 1),
    )


def distances_by_layer(rows: Sequence[Row]) -> Lines:
    """Return how much farther apart the codes of different operations are, with intervals."""
    ratios = sorted(chosen(rows, statistic="ratio"), key=lambda row: row["layer"])
    return Lines(
        title="distance between / within",
        x_label="layer",
        y_label="ratio of mean distances",
        x=[str(row["layer"] + 1) for row in ratios],
        series=[_with_intervals("between / within", ratios, "value", "low", "high", PALETTE[0])],
        levels=[Level(name="no structure", y=1.0)],
    )


def swaps_by_layer(rows: Sequence[Row], *, rate: str, title: str, together: bool) -> Lines:
    """Return how often predictions follow (or stay, or copy), by the layer that is swapped.

    Each layer alone, or `together`: from each to the last. A kind of code has one colour.
    """
    last = max(layers_in(rows, "last_layer"))
    ends = [(layer, last if together else layer) for layer in layers_in(rows, "first_layer")]
    colours = dict(zip(CODES, PALETTE, strict=False))
    lines = []
    for code in (code for code in CODES if chosen(rows, code=code)):
        own = {(row["first_layer"], row["last_layer"]): row for row in chosen(rows, code=code)}
        found = [own.get(layers, {}) for layers in ends]
        if any(row.get(f"{rate}_rate") is not None for row in found):
            value, low, high = (f"{rate}_{end}" for end in ("rate", "low", "high"))
            lines.append(_with_intervals(code, found, value, low, high, colours[code]))
    return Lines(
        title=title,
        x_label="first swapped layer" if together else "swapped layer",
        y_label=RATES[rate],
        x=[str(layer + 1) for layer, _ in ends],
        series=lines,
        y_range=(0, 1),
    )


def _with_intervals(
    name: str, rows: Sequence[Row], value: str, low: str, high: str, colour: str
) -> Series:
    """Return a line with the intervals that the rows have; what was not measured leaves a gap."""

    def reach(row: Row, end: str) -> float:
        known = row.get(value) is not None and row.get(end) is not None
        return abs(row[end] - row[value]) if known else 0.0

    return Series(
        name=name,
        y=[math.nan if row.get(value) is None else row[value] for row in rows],
        errors=[(reach(row, low), reach(row, high)) for row in rows],
        colour=colour,
    )

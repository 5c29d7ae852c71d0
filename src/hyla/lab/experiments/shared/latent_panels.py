"""Panels of latent codes that several figures share."""

from collections.abc import Mapping, Sequence
from typing import Any

from hyla.figures.drawing import METHOD_COLOURS, PALETTE, Figure, Heatmap, Lines, Points, Series
from hyla.lab.experiments.shared.panels import label_of, series
from hyla.lab.grids import METHODS
from hyla.results.runs import Row
from hyla.results.selection import Estimate, estimate
from hyla.results.tables import Results
from hyla.tasks.sraven.rules import PAPER_RULES

READINGS = {
    "ood_fixed_query": "one query point for all functions",
    "ood_fixed_context": "one context for all functions, as the paper's text has it",
}
"""How the codes of fuzzy logic are read: the split of unseen functions, and what it means."""

_WIDEST = 6
"""Most panels in a row that can still be read."""


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


def seeds_in(rows: Sequence[Row]) -> str:
    """Say how many models the rows are of: `3 seeds of each method`, or how many of which."""
    counts = {
        label_of(method): len({row["seed"] for row in rows if row["attention"] == method})
        for method in methods_in(rows)
    }
    texts = {name: f"{n} seed{'s' * (n != 1)}" for name, n in counts.items()}
    if len(texts) > 1 and len(set(texts.values())) == 1:
        return f"{texts.popitem()[1]} of each method"
    return ", ".join(f"{text} of {name}" for name, text in texts.items())


def figure_of_codes(
    results: Results, colours: dict[str, str], *, all_layers: bool, note: str = ""
) -> Figure | None:
    """Return rows of panels for each colour (label → what it is called): methods, then layers."""
    embedded = rows_of(results, what="embedding")
    if not embedded:
        return None
    class_colours = _class_colours(embedded, list(colours))
    panels = []
    for colour, name in colours.items():
        by_method = []
        for method in methods_in(embedded):
            own = [r for r in embedded if r["attention"] == method]
            layers = sorted({r["layer"] for r in own}) if all_layers else [last_layer(own)]
            clouds = [
                _cloud(
                    [r for r in own if r["layer"] == layer],
                    colour,
                    f"{label_of(method)}, layer {layer + 1}\nby {name}",
                    among=embedded,
                    class_colours=class_colours,
                )
                for layer in layers
            ]
            by_method.append(clouds)
        panels += _in_rows(by_method)
    seeds = {row["attention"]: row["seed"] for row in embedded}
    whose = ", ".join(f"{label_of(method)} seed {seeds[method]}" for method in methods_in(embedded))
    note = (
        f"{note} Codes of each method's model that is best on validation, among "
        f"{seeds_in(results.rows)}: {whose}."
    )
    return Figure(panels=panels, note=note.strip())


def _class_colours(rows: Sequence[Row], labels: Sequence[str]) -> dict[str, str]:
    """Return a colour for each class of the labels, of those that have few enough to tell apart."""
    classes = [{row[label] for row in rows if isinstance(row[label], str)} for label in labels]
    named = _in_order(set().union(*(names for names in classes if len(names) <= len(PALETTE))))
    return dict(zip(named, PALETTE, strict=False)) if len(named) <= len(PALETTE) else {}


def _cloud(
    rows: Sequence[Row],
    label: str,
    title: str,
    *,
    among: Sequence[Row],
    class_colours: Mapping[str, str],
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
    )


def _in_rows(groups: Sequence[Sequence[Points]]) -> list[list[Points]]:
    """Return the panels in rows, as words in lines: a group is broken only if it is too wide."""
    rows: list[list[Points]] = [[]]
    for group in groups:
        for start in range(0, len(group), _WIDEST):
            part = group[start : start + _WIDEST]
            if len(rows[-1]) + len(part) > _WIDEST:
                rows.append([])
            rows[-1] += part
    return rows


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
    """Return what else the label can be decoded from, beside one method's code.

    The code has the colour and the name of its method, as in `f1_by_layer`.
    """
    own = rows_of(results, metric="f1", label=label, split=split, attention=method)
    if not own:
        return None
    layers = sorted({row["layer"] for row in own if row["layer"] is not None})

    def line(predictor: str, name: str, colour: str, *, dashed: bool) -> Series:
        # What does not depend on the layer is a level line.
        flat = f1(results, label, split, method, predictor)
        scores = [flat or f1(results, label, split, method, predictor, layer) for layer in layers]
        return series(name, scores, colour, dashed=dashed)

    lines = [line("code", label_of(method), METHOD_COLOURS[method], dashed=False)]
    # All methods have the same controls, in whatever order: a control has one colour.
    controls = sorted({row["predictor"] for row in results.rows} - {"code"})
    free = [colour for colour in PALETTE if colour not in METHOD_COLOURS.values()]
    pairs = zip(controls, free, strict=False)
    lines += [line(name, name, colour, dashed=True) for name, colour in pairs]
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

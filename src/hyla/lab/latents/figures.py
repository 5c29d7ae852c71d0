"""What `hyla latents` draws of its tables: the same descriptions for files and for the page."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hyla.figures.drawing import METHOD_COLOURS, Figure, Heatmap, Panel
from hyla.lab.experiments.shared.code_panels import (
    RATES,
    chosen,
    clouds,
    code_map,
    decoded_by_layer,
    distances_by_layer,
    in_rows,
    layers_in,
    matrix,
    swaps_by_layer,
)
from hyla.lab.latents.captions import caption
from hyla.lab.latents.findings import LEAD
from hyla.results.runs import Row

_METRICS = {"accuracy": "accuracy", "f1": "F1"}
_PLACES = ("layer", "x", "y")


class Drawing(NamedTuple):
    """A figure with the name of its files and its heading on the page."""

    name: str
    heading: str
    figure: Figure


_Describe: TypeAlias = Callable[[Sequence[Row], str, str], Iterator[Drawing]]
"""Of the rows of a table, the column of the operations, and the metric of decoding."""


def drawings(
    table: str, rows: Sequence[Row], *, operation: str, metric: str = "accuracy"
) -> list[Drawing]:
    """Return the figures of one of `analysis.TABLES`, of one model.

    `operation` is the column that has the operations' names; decoding is shown by `metric`.
    """
    return list(_FIGURES[table](rows, operation, metric))


def write_drawings(
    drawn: Mapping[str, Iterable[Drawing]],
    folder: Path,
    *,
    title: str,
    files_of: Iterable[str],
    findings: Sequence[str] = (),
) -> None:
    """Write figures of tables as files, those of `files_of`, and all as a page if plotly is there.

    `drawn` has them by the name of their table; `findings` are sentences for the page's top.
    """
    from hyla.figures.draw_matplotlib import write_figure

    for table in files_of:
        for drawing in drawn.get(table, ()):
            write_figure(drawing.figure, folder / drawing.name)
    if find_spec("plotly") is not None:
        from hyla.figures.draw_plotly import write_page

        parts = [(one.heading, one.figure) for table in drawn.values() for one in table]
        write_page(folder / "latents.html", title, parts, lead=[LEAD], findings=findings)


def _embedding(rows: Sequence[Row], operation: str, metric: str) -> Iterator[Drawing]:
    labels = [name for name in rows[0] if name not in _PLACES]
    panels = clouds({"": rows}, {label: label for label in labels}, noted=labels)
    figure = Figure(panels=panels, note=caption("embedding", operation, rows))
    yield Drawing("embedding", "Codes, embedded by t-SNE", figure)


def _codes(table: str, heading: str) -> _Describe:
    def figures(rows: Sequence[Row], operation: str, metric: str) -> Iterator[Drawing]:
        largest = max(abs(row["value"]) for row in rows) or 1.0
        panels = [
            code_map(
                chosen(rows, layer=layer),
                operation,
                title=f"layer {layer + 1}",
                value_range=(-largest, largest),
            )
            for layer in layers_in(rows)
        ]
        figure = Figure(panels=in_rows([panels]), note=caption(table, operation))
        yield Drawing(table, heading, figure)

    return figures


def _similarity(rows: Sequence[Row], operation: str, metric: str) -> Iterator[Drawing]:
    panels = [
        matrix(
            chosen(rows, layer=layer),
            row="first",
            column="second",
            value="similarity",
            title=f"layer {layer + 1}",
            label="cosine similarity",
            value_range=(-1, 1),
            signed=True,
        )
        for layer in layers_in(rows)
    ]
    figure = Figure(panels=in_rows([panels]), note=caption("similarity", operation))
    yield Drawing("similarity", "Cosine similarity of mean codes", figure)


def _distances(rows: Sequence[Row], operation: str, metric: str) -> Iterator[Drawing]:
    heading = f"Distances between codes of different {operation}s, over those within one"
    figure = Figure(panels=[[distances_by_layer(rows)]], note=caption("distances", operation))
    yield Drawing("distances", heading, figure)


def _decoding(rows: Sequence[Row], operation: str, metric: str) -> Iterator[Drawing]:
    """A figure for each reading. Rows: what is decoded; columns: the pairs."""
    rows = chosen(rows, metric=metric, **{"class": "all"})
    pairs, splits = (_values(rows, column) for column in ("pairs", "split"))
    unseen = [split for split in splits if split.startswith("ood")]
    controls = sorted({row["predictor"] for row in rows} - {"code"})
    for split in unseen:
        panels: list[list[Panel]] = []
        for label in _values(rows, "label"):
            own = chosen(rows, label=label, split=split)
            of_pairs = [
                decoded_by_layer(
                    # The inputs and the residual stream are those of no pairs.
                    [row for row in own if row["pairs"] in (None, name)],
                    title=f"{label} from {name}",
                    metric=_METRICS[metric],
                    code=("code", METHOD_COLOURS["hyla"], False),
                    controls=controls,
                )
                for name in pairs
            ]
            panels.append([panel for panel in of_pairs if panel is not None])
        name = "decoding" if split == unseen[0] else f"decoding-{split}"
        figure = Figure(panels=panels, note=caption("decoding", operation))
        yield Drawing(name, f"Decoded from unseen compositions ({split})", figure)


def _swaps(rows: Sequence[Row], operation: str, metric: str) -> Iterator[Drawing]:
    """A figure for each split. Rows: what is counted, layers alone and together."""
    pairs = _values(rows, "pairs")
    several = len(layers_in(rows, "first_layer")) > 1
    for split in _values(rows, "split"):
        panels = [
            [
                swaps_by_layer(
                    chosen(rows, split=split, pairs=name),
                    rate=rate,
                    title=f"{name}: {'to the last layer' if together else 'one layer'}",
                    together=together,
                )
                for name in pairs
            ]
            for together, rate in product((False, True) if several else (False,), RATES)
        ]
        figure = Figure(panels=panels, note=caption("swaps", operation))
        yield Drawing(f"swaps-{split}", f"Swapped codes ({split})", figure)


def _swap_matrix(rows: Sequence[Row], operation: str, metric: str) -> Iterator[Drawing]:
    """Rows: the pairs; columns: which code was given."""
    panels = [
        [
            matrix(
                chosen(rows, pairs=pairs, code=code),
                row="recipient",
                column="donor",
                value="donor_rate",
                title=f"{pairs}: {code}",
                label=RATES["donor"],
                value_range=(0, 1),
                x_label="operation of the code",
                y_label="operation of the instance",
            )
            for code in _values(chosen(rows, pairs=pairs), "code")
        ]
        for pairs in _values(rows, "pairs")
    ]
    heading = f"How often each {operation}'s code (columns) is followed, all layers swapped"
    figure = Figure(panels=panels, note=caption("swap_matrix", operation))
    yield Drawing("swap_matrix", heading, figure)


def _heads(rows: Sequence[Row], operation: str, metric: str) -> Iterator[Drawing]:
    """Above: single heads taken out; below: single heads of a donor put in."""
    panels: list[list[Heatmap]] = []
    for code, rate in (("zero", "stay"), ("donor", "donor")):
        by_layer = [
            matrix(
                chosen(rows, code=code, layer=layer),
                row=operation,
                column="head",
                value=f"{rate}_rate",
                title=f"layer {layer + 1}, one head: {code}",
                label=RATES[rate],
                value_range=(0, 1),
                x_label="head",
            )
            for layer in layers_in(rows)
        ]
        panels += in_rows([by_layer])
    figure = Figure(panels=panels, note=caption("heads", operation))
    yield Drawing("heads", "Single heads taken out, or put in", figure)


def _values(rows: Sequence[Row], column: str) -> list[str]:
    """Return what a column holds, in the order of its first use."""
    return list(dict.fromkeys(row[column] for row in rows if row[column] is not None))


_FIGURES: Mapping[str, _Describe] = {
    "embedding": _embedding,
    "mean_codes": _codes("mean_codes", "Mean codes"),
    "sample_codes": _codes("sample_codes", "Samples of codes"),
    "similarity": _similarity,
    "distances": _distances,
    "decoding": _decoding,
    "swaps": _swaps,
    "swap_matrix": _swap_matrix,
    "heads": _heads,
}

"""The figures of an analysis: every table as panels of one picture."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyla.latents._optional import required
from hyla.latents.figures import (
    RATES,
    Table,
    draw_codes,
    draw_decoding,
    draw_distances,
    draw_embedding,
    draw_heads,
    draw_similarity,
    draw_swap_matrix,
    draw_swaps,
)
from hyla.latents.studies import Naming, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL = 3.4  # inches
_MOST_IN_LEGEND = 16


def write_figures(
    name: str, table: Table, names: Naming, folder: Path, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Draw the figures of a table into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for title, figure in FIGURES[name](table, names):
        for suffix in formats:
            path = folder / f"{title}.{suffix}"
            figure.savefig(path, dpi=150)
            files.append(path)
    return files


def _panels(rows: int, columns: int, width: float = _PANEL, height: float = _PANEL) -> Any:
    figure = required("matplotlib.figure").Figure(
        figsize=(width * columns, height * rows), layout="constrained"
    )
    return figure, figure.subplots(rows, columns, squeeze=False)


def _embedding(table: Table, names: Naming) -> Iterator[tuple[str, "Figure"]]:
    """Rows: by what the codes are coloured; columns: the layers."""
    layers = sorted(table["layer"].unique())
    colours = [name for name in table.columns if name not in ("layer", "x", "y")]
    figure, axes = _panels(len(colours), len(layers))
    for row, colour in zip(axes, colours, strict=True):
        for ax, layer in zip(row, layers, strict=True):
            few = table[colour].nunique() <= _MOST_IN_LEGEND
            numeric = table[colour].dtype.kind in "fiu"
            legend = layer == layers[-1] and (few or numeric)
            order = names.operations if colour == names.operation else names.classes.get(colour)
            draw_embedding(ax, table, colour, layer=layer, order=order, legend=legend)
        row[0].set_ylabel(colour)
    yield "embedding", figure


def _by_layer(name: str, draw: Callable[..., None]) -> Callable[..., Iterator[tuple[str, Any]]]:
    """One panel for each layer."""

    def figures(table: Table, names: Naming) -> Iterator[tuple[str, "Figure"]]:
        layers = sorted(table["layer"].unique())
        figure, axes = _panels(1, len(layers), width=_PANEL + 1.2)
        for ax, layer in zip(axes[0], layers, strict=True):
            draw(ax, table, names, layer=layer, legend=layer == layers[-1])
        yield name, figure

    return figures


def _distances(table: Table, names: Naming) -> Iterator[tuple[str, "Figure"]]:
    figure, axes = _panels(1, 1)
    draw_distances(axes[0, 0], table)
    yield "distances", figure


def _decoding(table: Table, study: Study) -> Iterator[tuple[str, "Figure"]]:
    """A figure for each reading. Rows: what is decoded; columns: the pairs."""
    pairs = list(table["pairs"].dropna().unique())
    for _, unseen in study.decoded:
        figure, axes = _panels(len(study.classes), len(pairs), width=4)
        for row, label in zip(axes, study.classes, strict=True):
            for ax, name in zip(row, pairs, strict=True):
                draw_decoding(
                    ax,
                    table,
                    label=label,
                    split=unseen,
                    pairs=name,
                    metric=study.decoding_metric,
                    legend=False,
                )
                ax.set_title(f"{label} from {name}")
        _legend_below(figure, axes[0, 0], columns=4)
        yield "decoding" if unseen == study.unseen else f"decoding-{unseen}", figure


def _swaps(table: Table, names: Naming) -> Iterator[tuple[str, "Figure"]]:
    """A figure for each split. Rows: what is counted, layers alone and together."""
    pairs = list(table["pairs"].unique())
    rows = list(product((False, True) if table["last_layer"].max() > 0 else (False,), RATES))
    for split in table["split"].unique():
        figure, axes = _panels(len(rows), len(pairs), width=4, height=2.8)
        for row, (joint, rate) in zip(axes, rows, strict=True):
            for ax, name in zip(row, pairs, strict=True):
                draw_swaps(ax, table, split=split, pairs=name, rate=rate, joint=joint, legend=False)
        _legend_below(figure, axes[0, 0], columns=3)
        yield f"swaps-{split}", figure


def _legend_below(figure: "Figure", panel: Any, columns: int) -> None:
    """Name the lines of a panel once for all of them, where they hide nothing."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def _swap_matrix(table: Table, names: Naming) -> Iterator[tuple[str, "Figure"]]:
    """Rows: the pairs; columns: which code was given."""
    pairs, codes = list(table["pairs"].unique()), list(table["code"].unique())
    figure, axes = _panels(len(pairs), len(codes), width=5.2, height=4.6)
    for row, name in zip(axes, pairs, strict=True):
        for ax, code in zip(row, codes, strict=True):
            chosen = table[(table["pairs"] == name) & (table["code"] == code)]
            draw_swap_matrix(ax, chosen, order=names.operations)
            ax.set_title(f"{name}: {code}")
    yield "swap_matrix", figure


def _heads(table: Table, names: Naming) -> Iterator[tuple[str, "Figure"]]:
    """Above: single heads taken out; below: single heads of a donor put in."""
    layers = sorted(table["layer"].unique())
    figure, axes = _panels(2, len(layers), width=_PANEL + 1)
    for row, (code, rate) in zip(axes, (("zero", "stay"), ("donor", "donor")), strict=True):
        for ax, layer in zip(row, layers, strict=True):
            draw_heads(
                ax,
                table,
                names.operation,
                layer=layer,
                code=code,
                rate=rate,
                order=names.operations,
                legend=layer == layers[-1],
            )
    yield "heads", figure


def _codes(ax: Any, table: Table, names: Naming, **options: Any) -> None:
    draw_codes(ax, table, names.operation, order=names.operations, **options)


def _similarity(ax: Any, table: Table, names: Naming, **options: Any) -> None:
    draw_similarity(ax, table, order=names.operations, **options)


FIGURES: Mapping[str, Callable[[Table, Any], Iterator[tuple[str, "Figure"]]]] = {
    "embedding": _embedding,
    "mean_codes": _by_layer("mean_codes", _codes),
    "sample_codes": _by_layer("sample_codes", _codes),
    "similarity": _by_layer("similarity", _similarity),
    "distances": _distances,
    "decoding": _decoding,
    "swaps": _swaps,
    "swap_matrix": _swap_matrix,
    "heads": _heads,
}
"""The figures of each of `analysis.TABLES`."""

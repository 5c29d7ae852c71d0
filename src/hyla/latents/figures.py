"""Pictures of latent codes: each function draws one tidy table on given matplotlib axes.

The tables are those of `geometry`, `probe` and `swap_tables`. Axes belong to the caller, who may
put several side by side. `order` gives the order of an operation's names.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hyla.latents._optional import required

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table: TypeAlias = Any
"""A pandas.DataFrame; its own annotations say too little for a type checker."""

# Okabe and Ito's palette: told apart by colour-blind readers too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
RATES = {"donor": "follows the donor", "stay": "stays", "copy": "copies the donor's answer"}
_MANY_COLOURS = "tab20"
_SIGNED = "RdBu_r"


def draw_embedding(
    ax: "Axes",
    table: Table,
    colour: str,
    *,
    layer: int,
    order: Sequence[str] | None = None,
    legend: bool = True,
) -> None:
    """Scatter one layer's codes, coloured by a label: by name, or on a scale if it is a number."""
    points = table[table["layer"] == layer]
    if points[colour].dtype.kind in "fiu":
        drawn = ax.scatter(points["x"], points["y"], c=points[colour], s=4, cmap="viridis", lw=0)
        if legend:
            ax.figure.colorbar(drawn, ax=ax, label=colour)
    else:
        names = _ordered(points[colour], order)
        for name, shade in zip(names, _colours(len(names)), strict=True):
            chosen = points[points[colour] == name]
            ax.scatter(chosen["x"], chosen["y"], color=shade, s=4, lw=0, label=name)
        if legend:
            ax.legend(
                markerscale=3,
                fontsize="x-small",
                frameon=False,
                loc="center left",
                bbox_to_anchor=(1, 0.5),
            )
    ax.set(title=f"layer {layer + 1}", xticks=[], yticks=[])


def draw_similarity(
    ax: "Axes",
    table: Table,
    *,
    layer: int,
    order: Sequence[str] | None = None,
    legend: bool = True,
) -> None:
    """Show the cosine similarities of mean codes as a heat map."""
    chosen = table[table["layer"] == layer]
    names = _ordered(chosen["first"], order)
    matrix = chosen.pivot(index="first", columns="second", values="similarity")
    _heat_map(ax, matrix.loc[names, names], limit=1.0, label="cosine similarity", legend=legend)
    ax.set(title=f"layer {layer + 1}", aspect="equal")


def draw_codes(
    ax: "Axes",
    table: Table,
    label: str,
    *,
    layer: int,
    order: Sequence[str] | None = None,
    legend: bool = True,
) -> None:
    """Show codes, mean codes or samples, as rows of a signed heat map, grouped by a label."""
    chosen = table[table["layer"] == layer]
    names = _ordered(chosen[label], order)
    rows = [label] if "sample" not in chosen else [label, "sample"]
    matrix = chosen.pivot(index=rows, columns="coordinate", values="value").loc[names]
    _heat_map(ax, matrix, label="code", legend=legend)
    each = len(matrix) // len(names)
    ax.set_yticks([each * i + (each - 1) / 2 for i in range(len(names))], names)
    ax.set(title=f"layer {layer + 1}", xlabel="coordinate of the code", aspect="auto")


def draw_distances(ax: "Axes", table: Table, *, colour: str = _COLOURS[0]) -> None:
    """Show how much farther apart the codes of different operations are, layer by layer."""
    ratios = table[table["statistic"] == "ratio"].sort_values("layer")
    _with_interval(
        ax, ratios["layer"] + 1, ratios["value"], ratios["low"], ratios["high"], color=colour
    )
    ax.axhline(1, color="grey", lw=0.8, ls=":")
    ax.set(xlabel="layer", ylabel="distance between / within", xticks=ratios["layer"] + 1)


def draw_decoding(
    ax: "Axes",
    table: Table,
    *,
    label: str,
    split: str,
    pairs: str,
    metric: str = "accuracy",
    legend: bool = True,
) -> None:
    """Show what each predictor decodes, by layer; those that know no layers as dotted lines."""
    chosen = table[
        (table["label"] == label)
        & (table["split"] == split)
        & (table["metric"] == metric)
        & (table["class"] == "all")
        & (table["pairs"].isna() | (table["pairs"] == pairs))
    ]
    layers = sorted(chosen["layer"].dropna().unique())
    for predictor, shade in zip(chosen["predictor"].unique(), _colours(8), strict=False):
        values = chosen[chosen["predictor"] == predictor].sort_values("layer")
        if values["layer"].isna().all():
            ax.axhline(values["value"].item(), color=shade, ls=":", label=predictor)
        else:
            style = "-" if predictor == "code" else "--"
            ax.plot(
                values["layer"] + 1,
                values["value"],
                style,
                marker="o",
                color=shade,
                label=predictor,
            )
    ax.set(
        xlabel="layer",
        ylabel=metric,
        ylim=(0, 1.02),
        title=f"{label}, {split}",
        xticks=[layer + 1 for layer in layers],
    )
    if legend:
        ax.legend(fontsize="x-small", frameon=False)


def draw_swaps(
    ax: "Axes",
    table: Table,
    *,
    split: str,
    pairs: str,
    rate: str = "donor",
    joint: bool = False,
    codes: Sequence[str] | None = None,
    legend: bool = True,
) -> None:
    """Show how often predictions follow the donor (or `stay`), by the layers that were swapped.

    Each layer alone, or `joint`: from each layer to the last. `codes` are those to be shown.
    """
    chosen = table[(table["split"] == split) & (table["pairs"] == pairs)]
    chosen = chosen[chosen["code"] != "own"]
    last = chosen["last_layer"].max()
    chosen = chosen[
        (chosen["last_layer"] == last) if joint else (chosen["first_layer"] == chosen["last_layer"])
    ]
    shown = [c for c in chosen["code"].unique() if codes is None or c in codes]
    for code, shade in zip(shown, _colours(len(shown)), strict=True):
        rows = chosen[chosen["code"] == code].sort_values("first_layer")
        _with_interval(
            ax,
            rows["first_layer"] + 1,
            rows[f"{rate}_rate"],
            rows[f"{rate}_low"],
            rows[f"{rate}_high"],
            color=shade,
            label=code,
        )
    ax.set(
        xlabel="first swapped layer" if joint else "swapped layer",
        ylabel=RATES[rate],
        ylim=(-0.02, 1.02),
        title=f"{pairs}, {split}",
        xticks=sorted(chosen["first_layer"].unique() + 1),
    )
    if legend:
        ax.legend(fontsize="x-small", frameon=False)


def draw_swap_matrix(
    ax: "Axes",
    table: Table,
    *,
    rate: str = "donor",
    order: Sequence[str] | None = None,
    legend: bool = True,
) -> None:
    """Show how often each operation's code (column) makes each operation's instances follow it."""
    names = _ordered(table["recipient"], order)
    matrix = table.pivot(index="recipient", columns="donor", values=f"{rate}_rate")
    label = RATES[rate]
    matrix = matrix.reindex(index=names, columns=names)
    _heat_map(ax, matrix, label=label, legend=legend, positive=True)
    ax.set(xlabel="operation of the code", ylabel="operation of the instance", aspect="equal")


def draw_heads(
    ax: "Axes",
    table: Table,
    operation: str,
    *,
    layer: int,
    code: str = "zero",
    rate: str = "stay",
    order: Sequence[str] | None = None,
    legend: bool = True,
) -> None:
    """Show what taking out (zero), or putting in (donor), single heads does to each operation."""
    chosen = table[(table["layer"] == layer) & (table["code"] == code)]
    names = _ordered(chosen[operation], order)
    matrix = chosen.pivot(index=operation, columns="head", values=f"{rate}_rate").loc[names]
    label = RATES[rate]
    _heat_map(ax, matrix, label=label, legend=legend, positive=True)
    ax.set(title=f"layer {layer + 1}, one head: {code}", xlabel="head", aspect="auto")


def _heat_map(
    ax: "Axes",
    matrix: Table,
    *,
    label: str,
    legend: bool,
    limit: float | None = None,
    positive: bool = False,
) -> None:
    """Zero is white, whatever the values are; a rate lies between 0 and 1."""
    values = matrix.to_numpy(dtype=float)
    if limit is None:
        limit = float(np.nanmax(np.abs(values), initial=0)) or 1.0
    drawn: Any = ax.imshow(
        values,
        cmap="viridis" if positive else _SIGNED,
        vmin=0 if positive else -limit,
        vmax=1 if positive else limit,
        interpolation="nearest",
    )
    if len(matrix.columns) <= 32:
        rotation = 90 if matrix.columns.dtype.kind not in "iu" else 0
        ax.set_xticks(range(len(matrix.columns)), matrix.columns, rotation=rotation)
    if len(matrix) <= 32:
        ax.set_yticks(range(len(matrix)), matrix.index)
    if legend:
        ax.figure.colorbar(drawn, ax=ax, label=label)


def _with_interval(ax: "Axes", x: Any, y: Any, low: Any, high: Any, **style: Any) -> None:
    ax.plot(x, y, marker="o", ms=4, **style)
    ax.fill_between(x.astype(float), low, high, color=style["color"], alpha=0.15, lw=0)


def _ordered(values: Any, order: Sequence[str] | None) -> list[str]:
    present = set(values)
    return sorted(present) if order is None else [name for name in order if name in present]


def _colours(number: int) -> list[Any]:
    if number <= len(_COLOURS):
        return list(_COLOURS[:number])
    shades = required("matplotlib").colormaps[_MANY_COLOURS if number <= 20 else "gist_ncar"]
    return [shades(i / max(1, number - 1)) for i in range(number)]

"""An analysis as one interactive HTML file that needs nothing else."""

import html
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hyla.latents._optional import required
from hyla.latents.figures import RATES, Table
from hyla.latents.studies import Naming, Study

_STYLE = "body{font-family:sans-serif;max-width:1200px;margin:2em auto;padding:0 1em}"
_SIGNED = "RdBu_r"


def write_page(tables: Mapping[str, Table], names: Naming, path: Path, *, title: str) -> None:
    """Write interactive versions of the tables' figures; the library that draws them is inlined."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    library = True
    for name, table in tables.items():
        for heading, figure in PLOTS[name](table, names):
            figure.update_layout(template="plotly_white", height=480)
            parts.append(f"<h2>{html.escape(heading)}</h2>")
            parts.append(figure.to_html(full_html=False, include_plotlyjs=library))
            library = False
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<!doctype html><html><head>{head}</head><body>{body}</body></html>", "utf-8")


def _embedding(table: Table, names: Naming) -> Iterator[tuple[str, Any]]:
    """One scatter for each layer; point at a code to see all its labels."""
    go = required("plotly.graph_objects")
    labels = [name for name in table.columns if name not in ("layer", "x", "y")]
    colour = names.operation if names.operation in labels else labels[0]
    hover = "<br>".join(f"{name}: %{{customdata[{i}]}}" for i, name in enumerate(labels))
    for layer, points in table.groupby("layer"):
        figure = go.Figure()
        for name, chosen in points.groupby(colour):
            figure.add_trace(
                go.Scattergl(
                    x=chosen["x"],
                    y=chosen["y"],
                    mode="markers",
                    marker={"size": 4},
                    name=str(name),
                    customdata=chosen[labels].to_numpy(dtype=object),
                    hovertemplate=hover + "<extra></extra>",
                )
            )
        yield f"Codes of layer {layer + 1}, embedded by t-SNE", figure


def _codes(table: Table, names: Naming) -> Iterator[tuple[str, Any]]:
    rows = [names.operation] + [name for name in ("sample",) if name in table]
    what = "Samples of codes" if "sample" in table else "Mean codes"
    for layer, chosen in table.groupby("layer"):
        matrix = chosen.pivot(index=rows, columns="coordinate", values="value")
        matrix.index = [" ".join(map(str, _as_tuple(index))) for index in matrix.index]
        yield f"{what} of layer {layer + 1}", _heat_map(matrix, signed=True)


def _similarity(table: Table, names: Naming) -> Iterator[tuple[str, Any]]:
    for layer, chosen in table.groupby("layer"):
        matrix = chosen.pivot(index="first", columns="second", values="similarity")
        heading = f"Cosine similarity of mean codes, layer {layer + 1}"
        yield heading, _heat_map(matrix, signed=True)


def _distances(table: Table, names: Naming) -> Iterator[tuple[str, Any]]:
    ratios = table[table["statistic"] == "ratio"].assign(what="between / within")
    figure = _lines(ratios, x="layer", y="value", low="low", high="high", by="what")
    yield f"Distances between codes of different {names.operation}s, over within one", figure


def _decoding(table: Table, study: Study) -> Iterator[tuple[str, Any]]:
    scores = table[(table["class"] == "all") & (table["metric"] == study.decoding_metric)]
    for (_, unseen), label in itertools.product(study.decoded, study.classes):
        chosen = scores[(scores["split"] == unseen) & (scores["label"] == label)]
        named = chosen.assign(
            name=[
                predictor if pairs is None or pairs != pairs else f"{predictor}: {pairs}"
                for predictor, pairs in zip(chosen["predictor"], chosen["pairs"], strict=True)
            ]
        )
        everywhere = sorted(named["layer"].dropna().unique())
        without = named[named["layer"].isna()]
        spread = without.drop(columns="layer").merge(
            required("pandas").DataFrame({"layer": everywhere}), how="cross"
        )
        both = required("pandas").concat([named.dropna(subset="layer"), spread])
        heading = f"Decoding {label} of unseen compositions ({study.decoding_metric}, {unseen})"
        yield heading, _lines(both, x="layer", y="value", by="name")


def _swaps(table: Table, names: Naming) -> Iterator[tuple[str, Any]]:
    alone = table[table["first_layer"] == table["last_layer"]]
    for (split, pairs), chosen in alone.groupby(["split", "pairs"], sort=False):
        for rate, what in RATES.items():
            figure = _lines(
                chosen.dropna(subset=f"{rate}_rate"),
                x="first_layer",
                y=f"{rate}_rate",
                low=f"{rate}_low",
                high=f"{rate}_high",
                by="code",
            )
            yield f"Swapped at one layer ({pairs}, {split}): how often it {what}", figure


def _swap_matrix(table: Table, names: Naming) -> Iterator[tuple[str, Any]]:
    for (pairs, code), chosen in table.groupby(["pairs", "code"], sort=False):
        matrix = chosen.pivot(index="recipient", columns="donor", values="donor_rate")
        heading = f"Follows the donor: {code}, {pairs} (columns: operation of the code)"
        yield heading, _heat_map(matrix, signed=False)


def _heads(table: Table, names: Naming) -> Iterator[tuple[str, Any]]:
    for layer, chosen in table[table["code"] == "zero"].groupby("layer"):
        matrix = chosen.pivot(index=names.operation, columns="head", values="stay_rate")
        yield f"Stays without one head, layer {layer + 1}", _heat_map(matrix, signed=False)


def _heat_map(matrix: Table, *, signed: bool) -> Any:
    go = required("plotly.graph_objects")
    scale = {"colorscale": _SIGNED, "zmid": 0} if signed else {"zmin": 0, "zmax": 1}
    return go.Figure(go.Heatmap(z=matrix.to_numpy(), x=matrix.columns, y=matrix.index, **scale))


def _lines(
    table: Table, *, x: str, y: str, by: str, low: str | None = None, high: str | None = None
) -> Any:
    go = required("plotly.graph_objects")
    figure = go.Figure()
    for name, rows in table.groupby(by, sort=False):
        rows = rows.sort_values(x)
        error = None
        if low is not None and high is not None:
            error = {"array": rows[high] - rows[y], "arrayminus": rows[y] - rows[low]}
        figure.add_trace(go.Scatter(x=rows[x] + 1, y=rows[y], error_y=error, name=str(name)))
    figure.update_xaxes(title="layer", dtick=1)
    return figure


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


PLOTS: Mapping[str, Callable[[Table, Any], Iterator[tuple[str, Any]]]] = {
    "embedding": _embedding,
    "mean_codes": _codes,
    "sample_codes": _codes,
    "similarity": _similarity,
    "distances": _distances,
    "decoding": _decoding,
    "swaps": _swaps,
    "swap_matrix": _swap_matrix,
    "heads": _heads,
}
"""The interactive figures of each of `analysis.TABLES`."""

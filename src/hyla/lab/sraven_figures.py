"""The picture of what `hyla sraven think` measures."""

from collections.abc import Mapping, Sequence
from typing import Any

from hyla.figures.drawing import PALETTE, Figure, Lines, Series

WAYS = {"search": "search on the code", "again": "asked again in other words"}
"""How a model may think longer, by the name of the way."""


def thinking_figure(measured: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the curves of models, each as `hyla sraven think --json` writes it."""
    passes = sorted({row["passes"] for one in measured for row in one["rows"]})
    series = []
    for colour, one in zip(PALETTE, measured, strict=False):
        for way, name in WAYS.items():
            own = {row["passes"]: row for row in one["rows"] if row["method"] == way}
            series.append(
                Series(
                    name=f"{one['model']}, {name}",
                    y=[_share(own.get(number)) for number in passes],
                    errors=[_reach(own.get(number)) for number in passes],
                    colour=colour,
                    dashed=way == "search",
                )
            )
    described = dict.fromkeys(
        f"{one['model']} on {one['instances']:,} instances of {one['split']}, {one['variant']}"
        for one in measured
    )
    panel = Lines(
        title="SRAVEN: thinking longer",
        x_label="passes through the model",
        y_label="right",
        x=[str(number) for number in passes],
        series=series,
    )
    note = f"{'; '.join(described)}. Bars are Wilson's 95 % intervals."
    return Figure(panels=[[panel]], note=note)


def _share(row: Mapping[str, Any] | None) -> float:
    return float("nan") if row is None else row["right"] / row["of"]


def _reach(row: Mapping[str, Any] | None) -> tuple[float, float]:
    """Return how far the interval reaches below and above."""
    if row is None:
        return 0.0, 0.0
    low, high = row["interval"]
    return _share(row) - low, high - _share(row)

"""Pictures of what `hyla sraven` measures beside training: thinking longer, and ambiguity."""

from collections.abc import Mapping, Sequence
from typing import Any

from hyla.figures.drawing import PALETTE, Bars, Figure, Lines, Series
from hyla.lab.paper import TABLE_A2

WAYS = {"search": "search on the code", "again": "asked again in other words"}
"""How a model may think longer, by the name of the way."""
_CRITERIA = {
    "ambiguous_by_definition": "by the paper's definition",
    "ambiguous_by_authors": "by the released check",
}


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


def ambiguity_figure(audits: Mapping[int, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw the share of ambiguous training instances, by the number of values of each audit.

    An audit is what `hyla sraven audit --json` prints.
    """
    train = {
        values: next(row for row in rows if row["split"] == "train")
        for values, rows in sorted(audits.items())
    }
    series = [
        Series(
            name=name,
            y=[row[criterion] for row in train.values()],
            errors=[row[f"{criterion}_se"] for row in train.values()],
            colour=colour,
        )
        for (criterion, name), colour in zip(_CRITERIA.items(), PALETTE, strict=False)
    ]
    printed = [TABLE_A2[values] for values in train]
    series.append(
        Series(
            name="printed in Table A2",
            y=[each.mean for each in printed],
            errors=[each.standard_error for each in printed],
            colour=PALETTE[2],
        )
    )
    panel = Bars(
        title="SRAVEN: instances with several answers",
        y_label="share of the instances",
        x=[f"K = {values}" for values in train],
        series=series,
    )
    return Figure(panels=[[panel]])

"""Figures as PNG and PDF."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyla.lab.drawing import PALETTE, Bars, Figure, Heatmap, Level, Lines, Panel, Points

_PANEL_INCHES = (3.6, 3.0)
_LEVEL_COLOUR = "#666666"
_MOST_TICKS = 20


def write_figure(figure: Figure, path: Path) -> list[Path]:
    """Draw the figure to `path` with .png and .pdf appended; return what was written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows, columns = len(figure.panels), max(len(row) for row in figure.panels)
    width = sum(_width(panel) for panel in max(figure.panels, key=len))
    canvas, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(width, _PANEL_INCHES[1] * rows),
        squeeze=False,
        layout="constrained",
    )
    for row, row_axes in zip(figure.panels, axes, strict=True):
        for axis in row_axes[len(row) :]:
            axis.set_axis_off()
        for panel, axis in zip(row, row_axes, strict=False):
            _draw(panel, axis)
            axis.set_title(panel.title, fontsize=9)
    # Laying out takes longer than drawing: once for both files.
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(path.name + suffix) for suffix in (".png", ".pdf")]
    for file in written:
        # Without dates, so that the same results give the same file.
        stamp = {"CreationDate": None} if file.suffix == ".pdf" else {"Software": None}
        canvas.savefig(file, dpi=150, metadata=stamp, bbox_inches="tight")  # long labels, too
    pyplot.close(canvas)
    return written


def _width(panel: Panel) -> float:
    groups = len(panel.x) if isinstance(panel, Bars) else 0
    return max(_PANEL_INCHES[0], 0.75 * groups)


def _draw(panel: Panel, axis: Any) -> None:
    match panel:
        case Lines():
            _draw_lines(panel, axis)
        case Bars():
            _draw_bars(panel, axis)
        case Points():
            _draw_points(panel, axis)
        case Heatmap():
            _draw_heatmap(panel, axis)


def _draw_lines(panel: Lines, axis: Any) -> None:
    named = any(isinstance(x, str) for x in panel.x)
    positions = list(range(len(panel.x))) if named else panel.x
    course = len(panel.x) > _MOST_TICKS  # of a training, say: a line rather than points
    for line in panel.series:
        axis.errorbar(
            positions,
            line.y,
            yerr=list(line.errors) or None,
            color=line.colour,
            label=line.name,
            marker="" if course else "o",
            markersize=3,
            capsize=2,
            linestyle="--" if line.dashed else "-",
        )
    if not course:
        axis.set_xticks(positions, [x if named else f"{x:g}" for x in panel.x])
    _finish(panel, axis)
    axis.set_xlabel(panel.x_label)


def _draw_bars(panel: Bars, axis: Any) -> None:
    width = 0.8 / len(panel.series)
    for i, one in enumerate(panel.series):
        offset = (i - (len(panel.series) - 1) / 2) * width
        axis.bar(
            [x + offset for x in range(len(panel.x))],
            one.y,
            width,
            yerr=list(one.errors) or None,
            color=one.colour,
            label=one.name,
            capsize=2,
        )
    crowded = sum(len(name) for name in panel.x) > 40
    turn = {"rotation": 30, "ha": "right"} if crowded else {}
    axis.set_xticks(range(len(panel.x)), panel.x, fontsize=7, **turn)
    _finish(panel, axis)


def _finish(panel: Lines | Bars, axis: Any) -> None:
    _draw_levels(panel.levels, axis)
    axis.set_ylabel(panel.y_label)
    if panel.y_range is not None:
        # Room for what falls outside, such as a negative R².
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, panel.y_range[0]), max(high, panel.y_range[1]))
    if len(panel.series) + len(panel.levels) > 1:
        axis.legend(frameon=False, fontsize=7)


def _draw_levels(levels: Sequence[Level], axis: Any) -> None:
    for level in levels:
        axis.axhline(level.y, color=_LEVEL_COLOUR, linestyle=":", linewidth=1, label=level.name)


def _draw_points(panel: Points, axis: Any) -> None:
    if any(isinstance(value, str) for value in panel.colour):
        for i, name in enumerate(sorted(set(panel.colour), key=str)):
            own = [j for j, value in enumerate(panel.colour) if value == name]
            colour = PALETTE[i % len(PALETTE)]
            xs, ys = [panel.x[j] for j in own], [panel.y[j] for j in own]
            axis.scatter(xs, ys, s=4, color=colour, label=name, linewidths=0)
        axis.legend(fontsize=5, markerscale=2, frameon=False, ncols=2)
    else:
        drawn = axis.scatter(panel.x, panel.y, s=4, c=panel.colour, cmap="viridis", linewidths=0)
        axis.figure.colorbar(drawn, ax=axis, label=panel.colour_label)
    axis.set_xticks([])
    axis.set_yticks([])


def _draw_heatmap(panel: Heatmap, axis: Any) -> None:
    low, high = panel.value_range or (None, None)
    drawn = axis.imshow(panel.values, aspect="auto", vmin=low, vmax=high, cmap="viridis")
    axis.set_xticks(range(len(panel.columns)), panel.columns, rotation=90, fontsize=6)
    axis.set_yticks(range(len(panel.rows)), panel.rows, fontsize=6)
    axis.figure.colorbar(drawn, ax=axis, label=panel.label)
    if panel.numbered:
        back = {"facecolor": "white", "alpha": 0.6, "linewidth": 0, "pad": 1}
        for i, row in enumerate(panel.values):
            for j, value in enumerate(row):
                if not math.isnan(value):
                    text = f"{value:.2g}"
                    axis.text(j, i, text, ha="center", va="center", fontsize=6, bbox=back)

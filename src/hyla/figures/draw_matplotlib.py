"""Figures as PNG and PDF."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyla._optional import needed
from hyla.figures.drawing import (
    LEVEL_COLOUR,
    SIGNED_COLOURS,
    Bars,
    Figure,
    Heatmap,
    Lines,
    Panel,
    Points,
    said_once,
    shared_scales,
)

_PANEL_INCHES = (3.6, 3.0)
_CLOUD_INCHES = (2.2, 2.4)  # of points: no axes to be read, and a title of two lines
_BESIDE_INCHES = 0.8
"""What the axes of a panel take of its width, and of its height."""
_MAP_INCHES = 1.5
"""Least width of a heatmap, beside the names of its rows."""
_MOST_LABELS = 5
"""Of an axis of numbers: more of six digits touch."""
_NUMBER_INCHES = 0.27
"""Width of a column of numbers in it."""
_TEXT_POINTS = 8
_LETTER_INCHES = 0.6 * _TEXT_POINTS / 72
_LINE_INCHES = 1.3 * _TEXT_POINTS / 72


SUFFIXES = (".png", ".pdf")


def write_figure(figure: Figure, path: Path) -> list[Path]:
    """Draw the figure to `path` with .png and .pdf appended; return what was written."""
    files = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    _write(figure, files)
    return files


def write_picture(figure: Figure, path: Path) -> None:
    """Draw the figure to one file, which says by its suffix what it is to be."""
    check_picture(path)
    _write(figure, [path])


def check_picture(path: Path) -> None:
    """Raise a ValueError if it could not be drawn: to be found before there is what to draw."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"a picture is called *{' or *'.join(SUFFIXES)}, got {path}")
    with needed("figures", "a picture needs matplotlib"):
        import matplotlib  # noqa: F401


def _write(figure: Figure, files: Sequence[Path]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"font.size": _TEXT_POINTS}):
        canvas = _canvas_of(figure)
        # Laying out takes longer than drawing: once for both files.
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Without dates, so that the same results give the same file.
            stamp = {"CreationDate": None} if file.suffix == ".pdf" else {"Software": None}
            canvas.savefig(file, dpi=150, metadata=stamp, bbox_inches="tight")  # long labels, too
            if file.suffix == ".png":
                _reduce_colours(file)
    pyplot.close(canvas)


def _reduce_colours(path: Path) -> None:
    """Keep 256 colours of a picture: a third of its size, and nobody sees it."""
    from PIL import Image

    with Image.open(path) as picture:
        reduced = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


def _canvas_of(figure: Figure) -> Any:
    from matplotlib import pyplot

    once = [
        [said_once(figure.panels, i, j) for j in range(len(row))]
        for i, row in enumerate(figure.panels)
    ]
    sizes = [
        [_size(panel, beside) for panel, (beside, _) in zip(*row, strict=True)]
        for row in zip(figure.panels, once, strict=True)
    ]
    heights = [max(height for *_, height in row) for row in sizes]
    columns = list(itertools.zip_longest(*sizes, fillvalue=(0.0, 0.0, 0.0)))
    widths = [max(width for _, width, _ in column) for column in columns]
    names = [max(beside for beside, *_ in column) for column in columns]
    canvas, axes = pyplot.subplots(
        len(heights),
        len(widths),
        figsize=(sum(widths) + sum(names), sum(heights)),
        width_ratios=widths,
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for row, row_once, row_axes in zip(figure.panels, once, axes, strict=True):
        for axis in row_axes[len(row) :]:
            axis.set_axis_off()
        for panel, said, axis in zip(row, row_once, row_axes, strict=False):
            _draw(panel, axis)
            axis.set_title(panel.title, fontsize=9)
            _leave_out(panel, said, axis)
        _draw_scales(row, row_axes)
    _draw_legend(canvas)
    return canvas


def _leave_out(panel: Panel, said_once: tuple[bool, bool], axis: Any) -> None:
    """Take away the names that stand at another panel."""
    beside, below = said_once
    if beside:
        axis.set_ylabel("")
        axis.tick_params(labelleft=not isinstance(panel, Heatmap))
    if below:
        axis.set_xlabel("")
        axis.tick_params(labelbottom=False)


def _size(panel: Panel, said_beside: bool = False) -> tuple[float, float, float]:
    """Return inches: what stands beside a panel, its own width, and its height with all around it.

    `said_beside`: the names of its rows stand at another panel.
    """
    width, height = _PANEL_INCHES[0] - _BESIDE_INCHES, _PANEL_INCHES[1]
    match panel:
        case Points():
            return 0.0, *_CLOUD_INCHES
        case Bars():
            return _BESIDE_INCHES, max(width, 0.75 * len(panel.x) - _BESIDE_INCHES), height
        case Heatmap():
            names = _LETTER_INCHES * max(map(len, panel.rows))
            numbers = _NUMBER_INCHES * len(panel.columns) if panel.numbered else 0
            return (
                _BESIDE_INCHES + (0 if said_beside else names),
                max(_MAP_INCHES, numbers, width - names, _title_inches(panel)),
                max(height, _BESIDE_INCHES + _LINE_INCHES * panel.named_rows),
            )
        case _:
            return _BESIDE_INCHES, width, height


def _title_inches(panel: Panel) -> float:
    return _LETTER_INCHES * max(map(len, panel.title.split("\n")))


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
    positions: Sequence[Any] = range(len(panel.x)) if panel.named else panel.x
    for line in panel.series:
        axis.errorbar(
            positions,
            line.y,
            yerr=line.reach,
            color=line.colour,
            label=line.name,
            marker="o" if panel.ticked else "",
            markersize=3,
            capsize=2,
            linestyle="--" if line.dashed else "-",
        )
    if panel.ticked:
        names = [x if isinstance(x, str) else f"{x:g}" for x in panel.x]
        _name_ticks(axis, positions, names, width=_size(panel)[1])
    else:
        axis.locator_params(axis="x", nbins=_MOST_LABELS)
        axis.xaxis.set_major_formatter("{x:,.10g}")
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
            yerr=one.reach,
            color=one.colour,
            label=one.name,
            capsize=2,
        )
    _name_ticks(axis, range(len(panel.x)), panel.x, width=_size(panel)[1])
    _finish(panel, axis)


def _name_ticks(
    axis: Any, positions: Sequence[float], names: Sequence[str], *, width: float
) -> None:
    """Name places on the horizontal axis: turned where names would touch, at worst not all."""
    closest = min((b - a for a, b in itertools.pairwise(positions)), default=1)
    inches = [width * place / (positions[-1] - positions[0] + closest) for place in positions]
    kept = [0]
    for i, place in enumerate(inches):
        if place - inches[kept[-1]] >= _LINE_INCHES:
            kept.append(i)
    room = min((inches[b] - inches[a] for a, b in itertools.pairwise(kept)), default=width)
    turn: dict[str, Any] = {}
    if room < _LETTER_INCHES * (1 + max(len(names[i]) for i in kept)):
        slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        turn = slant if room >= 2 * _LINE_INCHES else {"rotation": 90}
    axis.set_xticks([positions[i] for i in kept], [names[i] for i in kept], **turn)


def _finish(panel: Lines | Bars, axis: Any) -> None:
    for level in panel.levels:
        axis.axhline(level.y, color=LEVEL_COLOUR, linestyle=":", linewidth=1, label=level.name)
    axis.set_ylabel(panel.y_label)
    if panel.y_range is not None:
        # Room for what falls outside, such as a negative R².
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, panel.y_range[0]), max(high, panel.y_range[1]))


def _draw_points(panel: Points, axis: Any) -> None:
    if panel.class_colours:
        for name, colour in panel.class_colours.items():
            own = [j for j, value in enumerate(panel.values) if value == name]
            xs, ys = [panel.x[j] for j in own], [panel.y[j] for j in own]
            axis.scatter(xs, ys, s=4, color=colour, label=name, linewidths=0)
    else:
        low, high = panel.value_range or (None, None)
        shown = {"c": panel.values, "cmap": "viridis", "vmin": low, "vmax": high}
        axis.scatter(panel.x, panel.y, s=4, linewidths=0, **shown)
    axis.set_xticks([])
    axis.set_yticks([])


def _draw_heatmap(panel: Heatmap, axis: Any) -> None:
    low, high = panel.scale or (None, None)
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("signed", SIGNED_COLOURS)
    cmap = colours if panel.signed else "viridis"
    image = axis.imshow(panel.values, aspect="auto", vmin=low, vmax=high, cmap=cmap)
    _name_ticks(axis, range(len(panel.columns)), panel.columns, width=_size(panel)[1])
    axis.set(xlabel=panel.x_label, ylabel=panel.y_label)
    named = [i for i, name in enumerate(panel.rows) if name]
    axis.set_yticks(named, [panel.rows[i] for i in named])
    if panel.numbered:
        for i, row in enumerate(panel.values):
            for j, value in enumerate(row):
                if not math.isnan(value):
                    text = f"{value:{panel.number_format}}"
                    colour = _readable_on(image.cmap(image.norm(value)))
                    axis.text(j, i, text, ha="center", va="center", fontsize=6, color=colour)


def _readable_on(colour: Sequence[float]) -> str:
    """Return black or white, whichever is farther from a colour in lightness."""
    red, green, blue = (part**2.2 for part in colour[:3])
    lightness = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "white" if lightness < 0.18 else "black"


# --- what panels share -----------------------------------------------------------------------


def _draw_scales(row: Sequence[Panel], axes: Sequence[Any]) -> None:
    """Say which colour is which number: once for panels of a row with the same range."""
    for label, places in shared_scales(row):
        together = [axes[i] for i in places]
        [drawn] = [*together[0].images, *together[0].collections]
        together[0].figure.colorbar(drawn, ax=together, label=label, pad=0.02)


def _draw_legend(canvas: Any) -> None:
    """Name the colours of all panels below them, where that covers nothing."""
    found: dict[str, Any] = {}
    for axis in canvas.axes:
        handles, names = axis.get_legend_handles_labels()
        for name, handle in zip(names, handles, strict=True):
            found.setdefault(name, handle)  # the first of a name stands for it
    if len(found) < 2:
        return
    width, height = canvas.get_size_inches()
    fitting = max(1, int(width / (_LETTER_INCHES * max(map(len, found)) + 0.7)))
    lines = math.ceil(len(found) / fitting)
    canvas.set_size_inches(width, height + 0.2 * lines)
    canvas.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=math.ceil(len(found) / lines),
        frameon=False,
        markerscale=2,
        handlelength=3,
    )

"""Figures as interactive parts of a page."""

import html
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from hyla.figures.page import STYLE, contents, top

_PAGE_PIXELS = 1100
"""Width of the report's page, without margins."""
_SCALE_PIXELS = 75
"""What a scale of colours takes beside a panel."""
_ABOVE_PIXELS = 50


def figure_html(figure: Figure) -> str:
    """Return the figure as a piece of HTML; the page has to hold plotly's script once.

    It is as wide as what it is put into, but not so narrow that titles touch.
    """
    from plotly.subplots import make_subplots

    rows, columns = len(figure.panels), max(len(row) for row in figure.panels)
    titles = [
        row[i].title.replace("\n", "<br>") if i < len(row) else ""
        for row in figure.panels
        for i in range(columns)
    ]
    sizes = _sizes(figure)
    panels = [panel for row in figure.panels for panel in row]
    # Points are too small to tell their colours apart; lines as they are show their dashes.
    keys = "constant" if any(isinstance(panel, Points) for panel in panels) else "trace"
    between = rows * sizes.height + (rows - 1) * sizes.below
    canvas = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=titles,
        horizontal_spacing=sizes.beside / _PAGE_PIXELS,
        vertical_spacing=sizes.below / between,
    )
    shown: set[str] = set()
    scales = (f"coloraxis{number}" for number in itertools.count(2))  # the first has no number
    for i, row in enumerate(figure.panels):
        for j, panel in enumerate(row):
            place = {"row": i + 1, "col": j + 1}
            _draw(panel, canvas, place, shown)
            _leave_out(panel, said_once(figure.panels, i, j), canvas, place)
        for (label, places), scale in zip(shared_scales(row), scales, strict=False):
            sharing = [(row[j], {"row": i + 1, "col": j + 1}) for j in places]
            _draw_scale(label, sharing, scale, canvas)
    canvas.update_layout(
        template="plotly_white",
        height=between + _ABOVE_PIXELS + sizes.last,
        margin={"l": 60, "r": 20, "t": _ABOVE_PIXELS, "b": sizes.last},
        font={"size": 12},
        legend={"tracegroupgap": 0, "itemsizing": keys},
        # The page's own ground, which may be dark.
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        # Plotly would make half a black box of it, and white signs on that; greys show on both.
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#999", "activecolor": "#777"},
    )
    if any(map(shared_scales, figure.panels)):
        canvas.update_layout(legend_x=1 + _SCALE_PIXELS / _PAGE_PIXELS)  # right of the scales
    canvas.update_annotations(font_size=12)
    drawn = canvas.to_html(full_html=False, include_plotlyjs=False)
    return f"<div style='min-width: {min(columns * sizes.width, _PAGE_PIXELS)}px'>{drawn}</div>"


def write_page(
    path: Path,
    title: str,
    parts: Sequence[tuple[str, Figure]],
    *,
    lead: Sequence[str] = (),
    findings: Sequence[str] = (),
) -> None:
    """Write headings and figures as one file that needs nothing else, not even a network.

    `findings` say what came out, and stand first; `lead` says what one sees.
    """
    body = top(lead, findings)
    if len(parts) > 2:
        body.append(contents([heading for heading, _ in parts]))
    for i, (heading, figure) in enumerate(parts):
        note = f"<p class='note'>{html.escape(figure.note)}</p>" if figure.note else ""
        body += [f"<h2 id='part-{i}'>{html.escape(heading)}</h2>", note]
        body.append(f"<div class='scroll'>{figure_html(figure)}</div>")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_html(title, body), encoding="utf-8")


def page_html(title: str, body: Iterable[str], *, style: str = "", interactive: bool = True) -> str:
    """Return a whole page; `style` goes over the common one. One without plotly is still."""
    head = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style>"
    )
    script = plotly_script() if interactive else ""
    heading = f"{script}</head><body><h1>{html.escape(title)}</h1>"
    return "\n".join([head, heading, *body, "</body></html>", ""])


def plotly_script() -> str:
    """Return plotly itself, to be put into the page: a page that asks a network for it breaks."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def _has_scale_inside(figure: Figure) -> bool:
    """Whether a scale of colours stands between two panels, rather than right of all."""
    return any(
        places[-1] < len(row) - 1 for row in figure.panels for _, places in shared_scales(row)
    )


class _Sizes(NamedTuple):
    """Pixels that all panels of a figure get: their width with all around them, and their height.

    Then what names and titles take: between two beside each other, between two rows, and below the
    last.
    """

    width: int
    height: int
    beside: int
    below: int
    last: int


def _sizes(figure: Figure) -> _Sizes:
    last = len(figure.panels) - 1
    beside, below, bottom = [20], [60], [40]
    widths, heights = [], []
    for i, row in enumerate(figure.panels):
        for j, panel in enumerate(row):
            said_beside, said_below = said_once(figure.panels, i, j)
            width, height = _least(panel)
            names, under = _around(panel)
            widths.append(width + (0 if said_beside else names))
            heights.append(height)
            if j and not (said_beside and isinstance(panel, Heatmap)):
                beside.append(names)
            if i == last:
                bottom.append(under)
            elif not said_below:
                below.append(under + 30)  # and the next title
    scale = _SCALE_PIXELS if _has_scale_inside(figure) else 0
    return _Sizes(max(widths), max(heights), max(beside) + scale, max(below), max(bottom))


def _least(panel: Panel) -> tuple[int, int]:
    """Return the least width of a panel, without names, and its height."""
    match panel:
        case Points():
            return 165, 220
        case Heatmap():
            numbers = 34 * len(panel.columns) if panel.numbered else 0
            return max(200, numbers, 7 * len(panel.title)), max(160, 20 * panel.named_rows)
        case _:
            return 250, 220


def _around(panel: Panel) -> tuple[int, int]:
    """Return what names and titles take beside a panel and below it."""
    match panel:
        case Points():
            return 15, 20
        case Heatmap():
            beside = 20 + 7 * max(map(len, panel.rows), default=0) + 25 * bool(panel.y_label)
            longest = max(map(len, panel.columns), default=0)
            # Longer names are turned.
            below = 25 if longest <= 3 else 30 + 4 * longest
            return beside, below + 25 * bool(panel.x_label)
        case _:
            return 70, 60


def _leave_out(
    panel: Panel, said_once: tuple[bool, bool], canvas: Any, place: dict[str, int]
) -> None:
    """Take away the names that stand at another panel."""
    beside, below = said_once
    if beside:
        canvas.update_yaxes(title_text=None, **place)
        canvas.update_yaxes(showticklabels=not isinstance(panel, Heatmap), **place)
    if below:
        canvas.update_xaxes(title_text=None, showticklabels=False, **place)


def _draw(panel: Panel, canvas: Any, place: dict[str, int], shown: set[str]) -> None:
    match panel:
        case Lines():
            _draw_series(panel, canvas, place, shown)
            canvas.update_xaxes(title_text=panel.x_label, **_ticks(panel), **place)
        case Bars():
            _draw_series(panel, canvas, place, shown)
        case Points():
            _draw_points(panel, canvas, place, shown)
        case Heatmap():
            _draw_heatmap(panel, canvas, place)


def _ticks(panel: Lines) -> dict[str, Any]:
    """Put ticks where something was measured; layers are names, though they look like numbers."""
    if panel.named:
        return {"type": "category"}
    return {"tickvals": list(panel.x)} if panel.ticked else {}


def _draw_series(panel: Lines | Bars, canvas: Any, place: dict[str, int], shown: set[str]) -> None:
    from plotly import graph_objects

    for one in panel.series:
        shared: dict[str, Any] = {
            "x": list(panel.x),
            "y": list(one.y),
            "name": one.name,
            "legendgroup": one.name,
            "showlegend": one.name not in shown,
        }
        shown.add(one.name)
        if one.reach is not None:
            below, above = one.reach
            shared["error_y"] = {"type": "data", "array": above, "arrayminus": below}
        if isinstance(panel, Bars):
            trace = graph_objects.Bar(marker={"color": _css(one.colour)}, **shared)
        else:
            line = {"color": _css(one.colour), "dash": "dash" if one.dashed else "solid"}
            trace = graph_objects.Scatter(mode="lines+markers", line=line, **shared)
        canvas.add_trace(trace, **place)
    canvas.update_yaxes(title_text=panel.y_label, **place)
    if panel.y_range is not None:
        values = [y for one in panel.series for y in one.y if y == y]
        low, high = min([panel.y_range[0], *values]), max([panel.y_range[1], *values])
        # What is below the range, such as a negative R², is not cut off at its lowest point.
        room = 0.02 * (high - low)
        canvas.update_yaxes(range=[low - room * (low < panel.y_range[0]), high + room], **place)
    for level in panel.levels:
        canvas.add_hline(
            y=level.y,
            line={"color": LEVEL_COLOUR, "dash": "dot", "width": 1},
            annotation={"text": level.name, "font": {"size": 10}},
            **place,
        )


def _draw_points(panel: Points, canvas: Any, place: dict[str, int], shown: set[str]) -> None:
    from plotly import graph_objects

    def cloud(which: Sequence[int], **options: Any) -> Any:
        xs, ys = [panel.x[j] for j in which], [panel.y[j] for j in which]
        if panel.notes:
            notes = [html.escape(panel.notes[j]).replace("\n", "<br>") for j in which]
            options |= {"text": notes, "hovertemplate": "%{text}<extra></extra>"}
        return graph_objects.Scatter(x=xs, y=ys, mode="markers", **options)

    if panel.class_colours:
        for name, colour in panel.class_colours.items():
            own = [j for j, value in enumerate(panel.values) if value == name]
            if not own:
                continue  # a trace of nothing would not be in the legend, and keep others out
            marker = {"size": 4, "color": _css(colour)}
            options = {"legendgroup": name, "showlegend": name not in shown}
            shown.add(name)
            canvas.add_trace(cloud(own, name=name, marker=marker, **options), **place)
    else:
        marker = {"size": 4, "color": list(panel.values)}
        hover = f"{panel.label} %{{marker.color:.3~g}}<extra></extra>"
        everything = range(len(panel.x))
        canvas.add_trace(
            cloud(everything, marker=marker, showlegend=False, hovertemplate=hover), **place
        )
    # Where a point lies means nothing by itself.
    bare = {"showticklabels": False, "showgrid": False, "zeroline": False}
    canvas.update_xaxes(**bare, **place)
    canvas.update_yaxes(**bare, **place)


def _draw_heatmap(panel: Heatmap, canvas: Any, place: dict[str, int]) -> None:
    from plotly import graph_objects

    canvas.add_trace(
        graph_objects.Heatmap(
            z=[list(row) for row in panel.values],
            x=list(panel.columns),
            texttemplate=f"%{{z:{panel.number_format}}}" if panel.numbered else None,
            textfont={"size": 10},
            hovertemplate=f"%{{y}}, %{{x}}: {panel.label} %{{z:.3~g}}<extra></extra>",
        ),
        **place,
    )
    # By number: plotly would lay rows of the same name, such as none, on each other.
    named = [i for i, name in enumerate(panel.rows) if name]
    names = [panel.rows[i] for i in named]
    canvas.update_yaxes(autorange="reversed", tickvals=named, ticktext=names, **place)
    # Columns that look like numbers are names, too. Where there is room for all, all are shown.
    canvas.update_xaxes(type="category", dtick=1 if panel.numbered else None, **place)
    canvas.update_xaxes(title_text=panel.x_label or None, **place)
    canvas.update_yaxes(title_text=panel.y_label or None, **place)


def _draw_scale(
    label: str, sharing: Sequence[tuple[Panel, dict[str, int]]], name: str, canvas: Any
) -> None:
    """Say which colour is which number, to the right of the last panel that it is for."""
    for panel, place in sharing:
        key = "coloraxis" if isinstance(panel, Heatmap) else "marker.coloraxis"
        canvas.update_traces({key: name}, **place)
    panel, place = sharing[-1]
    assert isinstance(panel, Heatmap | Points)
    signed = isinstance(panel, Heatmap) and panel.signed
    limits = panel.scale if isinstance(panel, Heatmap) else panel.value_range
    low, high = limits or (None, None)
    subplot = canvas.get_subplot(**place)
    bottom, top = subplot.yaxis.domain
    bar = {
        "title": {"text": label, "side": "right"},
        "thickness": 10,
        "x": subplot.xaxis.domain[1],
        "xpad": 5,
        "y": (bottom + top) / 2,
        "len": top - bottom,
        "ypad": 0,
    }
    colours = SIGNED_COLOURS if signed else "Viridis"
    scale = {"colorscale": colours, "cmin": low, "cmax": high, "colorbar": bar}
    canvas.update_layout({name: scale})


def _css(colour: str) -> str:
    """Return a colour as plotly takes it, any that matplotlib knows: it draws the same figures."""
    if colour.startswith("#"):
        return colour
    from matplotlib.colors import to_hex

    return to_hex(colour)

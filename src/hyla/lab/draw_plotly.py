"""Figures as interactive parts of a page."""

from collections.abc import Sequence
from typing import Any

from hyla.lab.drawing import PALETTE, Bars, Figure, Heatmap, Level, Lines, Panel, Points

_PANEL_PIXELS = 340
_LEVEL_COLOUR = "#666666"


def figure_html(figure: Figure) -> str:
    """Return the figure as a piece of HTML; the page has to hold plotly's script once."""
    from plotly.subplots import make_subplots

    rows, columns = len(figure.panels), max(len(row) for row in figure.panels)
    titles = [row[i].title if i < len(row) else "" for row in figure.panels for i in range(columns)]
    canvas = make_subplots(rows=rows, cols=columns, subplot_titles=titles)
    shown: set[str] = set()
    for i, row in enumerate(figure.panels, start=1):
        for j, panel in enumerate(row, start=1):
            _draw(panel, canvas, {"row": i, "col": j}, shown)
    canvas.update_layout(
        template="plotly_white",
        height=_PANEL_PIXELS * rows + 60,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        font={"size": 12},
    )
    canvas.update_annotations(font_size=12)
    return canvas.to_html(full_html=False, include_plotlyjs=False)


def plotly_script() -> str:
    """Return plotly itself, to be put into the page: a page that asks a network for it breaks."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def _draw(panel: Panel, canvas: Any, place: dict[str, int], shown: set[str]) -> None:
    match panel:
        case Lines():
            _draw_series(panel, canvas, place, shown)
            canvas.update_xaxes(title_text=panel.x_label, **place)
        case Bars():
            _draw_series(panel, canvas, place, shown)
        case Points():
            _draw_points(panel, canvas, place, shown)
        case Heatmap():
            _draw_heatmap(panel, canvas, place)


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
        if one.errors:
            shared["error_y"] = {"type": "data", "array": list(one.errors)}
        if isinstance(panel, Bars):
            trace = graph_objects.Bar(marker={"color": one.colour}, **shared)
        else:
            line = {"color": one.colour, "dash": "dash" if one.dashed else "solid"}
            trace = graph_objects.Scatter(mode="lines+markers", line=line, **shared)
        canvas.add_trace(trace, **place)
    canvas.update_yaxes(title_text=panel.y_label, **place)
    if panel.y_range is not None:
        values = [y for one in panel.series for y in one.y if y == y]
        low, high = min([panel.y_range[0], *values]), max([panel.y_range[1], *values])
        canvas.update_yaxes(range=[low, high * 1.02], **place)
    _draw_levels(panel.levels, canvas, place)


def _draw_levels(levels: Sequence[Level], canvas: Any, place: dict[str, int]) -> None:
    for level in levels:
        canvas.add_hline(
            y=level.y,
            line={"color": _LEVEL_COLOUR, "dash": "dot", "width": 1},
            annotation={"text": level.name, "font": {"size": 10}},
            **place,
        )


def _draw_points(panel: Points, canvas: Any, place: dict[str, int], shown: set[str]) -> None:
    from plotly import graph_objects

    def cloud(which: Sequence[int], **options: Any) -> Any:
        xs, ys = [panel.x[j] for j in which], [panel.y[j] for j in which]
        return graph_objects.Scatter(x=xs, y=ys, mode="markers", **options)

    if any(isinstance(value, str) for value in panel.colour):
        for i, name in enumerate(sorted(set(panel.colour), key=str)):
            own = [j for j, value in enumerate(panel.colour) if value == name]
            marker = {"size": 4, "color": PALETTE[i % len(PALETTE)]}
            options = {"legendgroup": name, "showlegend": name not in shown}
            shown.add(str(name))
            canvas.add_trace(cloud(own, name=str(name), marker=marker, **options), **place)
    else:
        marker = {"size": 4, "color": list(panel.colour), "colorscale": "Viridis"}
        hover = f"{panel.colour_label} %{{marker.color:.3g}}<extra></extra>"
        everything = range(len(panel.x))
        canvas.add_trace(
            cloud(everything, marker=marker, showlegend=False, hovertemplate=hover), **place
        )
    canvas.update_xaxes(showticklabels=False, **place)
    canvas.update_yaxes(showticklabels=False, **place)


def _draw_heatmap(panel: Heatmap, canvas: Any, place: dict[str, int]) -> None:
    from plotly import graph_objects

    low, high = panel.value_range or (None, None)
    canvas.add_trace(
        graph_objects.Heatmap(
            z=[list(row) for row in panel.values],
            x=list(panel.columns),
            y=list(panel.rows),
            zmin=low,
            zmax=high,
            colorscale="Viridis",
            showscale=False,
            texttemplate="%{z:.2g}" if panel.numbered else None,
            hovertemplate=f"%{{y}}, %{{x}}: {panel.label} %{{z:.3g}}<extra></extra>",
        ),
        **place,
    )
    canvas.update_yaxes(autorange="reversed", **place)

"""Figures as interactive parts of a page."""

from collections.abc import Sequence
from typing import Any

from hyla.lab.drawing import Bars, Figure, Heatmap, Level, Lines, Panel, Points

_PAGE_PIXELS = 1100
"""Width of the report's page, without margins."""
_LEVEL_COLOUR = "#666666"


def figure_html(figure: Figure) -> str:
    """Return the figure as a piece of HTML; the page has to hold plotly's script once."""
    from plotly.subplots import make_subplots

    rows, columns = len(figure.panels), max(len(row) for row in figure.panels)
    titles = [
        row[i].title.replace("\n", "<br>") if i < len(row) else ""
        for row in figure.panels
        for i in range(columns)
    ]
    panels = [panel for row in figure.panels for panel in row]
    height, beside, below = map(max, zip(*map(_size, panels), strict=True))
    # Points are too small to tell their colours apart; lines as they are show their dashes.
    keys = "constant" if any(isinstance(panel, Points) for panel in panels) else "trace"
    canvas = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=titles,
        horizontal_spacing=beside / _PAGE_PIXELS,
        vertical_spacing=below / (rows * (height + below) - below),
    )
    shown: set[str] = set()
    for i, row in enumerate(figure.panels, start=1):
        for j, panel in enumerate(row, start=1):
            _draw(panel, canvas, {"row": i, "col": j}, shown)
    canvas.update_layout(
        template="plotly_white",
        height=rows * (height + below) + 50,
        margin={"l": 60, "r": 20, "t": 50, "b": below},
        font={"size": 12},
        legend={"tracegroupgap": 0, "itemsizing": keys},
    )
    canvas.update_annotations(font_size=12)
    return canvas.to_html(full_html=False, include_plotlyjs=False)


def plotly_script() -> str:
    """Return plotly itself, to be put into the page: a page that asks a network for it breaks."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def _size(panel: Panel) -> tuple[int, int, int]:
    """Return a panel's height in pixels, and what its axes and the next title take around it."""
    match panel:
        case Points():
            return 220, 15, 50
        case Heatmap():
            return max(250, 18 * panel.named_rows), 20 + 7 * max(map(len, panel.rows)), 110
        case _:
            return 250, 70, 110


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

    if panel.class_colours:
        for name, colour in panel.class_colours.items():
            own = [j for j, value in enumerate(panel.values) if value == name]
            if not own:
                continue  # a trace of nothing would not be in the legend, and keep others out
            marker = {"size": 4, "color": colour}
            options = {"legendgroup": name, "showlegend": name not in shown}
            shown.add(name)
            canvas.add_trace(cloud(own, name=name, marker=marker, **options), **place)
    else:
        low, high = panel.value_range or (None, None)
        scale = {"colorscale": "Viridis", "cmin": low, "cmax": high}
        marker = {"size": 4, "color": list(panel.values), **scale}
        hover = f"{panel.label} %{{marker.color:.3g}}<extra></extra>"
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
            zmin=low,
            zmax=high,
            colorscale="Viridis",
            showscale=False,
            texttemplate="%{z:.2g}" if panel.numbered else None,
            hovertemplate=f"%{{y}}, %{{x}}: {panel.label} %{{z:.3g}}<extra></extra>",
        ),
        **place,
    )
    # By number: plotly would lay rows of the same name, such as none, on each other.
    named = [i for i, name in enumerate(panel.rows) if name]
    names = [panel.rows[i] for i in named]
    canvas.update_yaxes(autorange="reversed", tickvals=named, ticktext=names, **place)

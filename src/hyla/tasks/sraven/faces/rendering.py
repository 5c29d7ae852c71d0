"""An SRAVEN instance for human eyes: as text, and as a drawing in the style of Figure 3A.

Colours stand for features and appear with the answer only: they give the correspondences away.
"""

from __future__ import annotations

from rich.text import Text

from hyla._colours import BLUE, GREEN, ORANGE, PINK, SKY, VERMILION
from hyla.tasks.sraven.faces.picture import INK, PAPER, Box, Label, Outline, Picture, mix
from hyla.tasks.sraven.problem import Panel, Problem

# Okabe and Ito's palette, told apart by colour-blind readers too; repeats from the eighth feature.
FEATURE_COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, "#6B7280")
PALE = "#F3F5F7"
GREY = "#7B8794"

MARGIN = 28
HEADER = 44
_CELL = 34
_GUTTER = 56
_ROW_GAP = 22
_PADDING = 8
_RULE_WIDTH = 140
_TITLE_WIDTH = 92


def feature_colour(feature: int) -> str:
    """The colour that stands for a feature."""
    return FEATURE_COLOURS[feature % len(FEATURE_COLOURS)]


def shown_value(value: int) -> str:
    """A value of a panel as people see it; a blank is a dot."""
    return "·" if value < 0 else str(value)


def to_text(problem: Problem, *, answer: bool = False) -> Text:
    """The grid in box-drawing characters, the query as question marks.

    With `answer` the query is filled in, and each feature is listed with its rule, its values with
    its own order restored, and the positions at which the columns show it, counted from 1.
    `.plain` is the text without colours.
    """
    width = len(str(problem.config.num_values - 1))
    inner = "─" * (problem.config.panel_size * (width + 1) + 1)
    size = problem.config.grid_size
    text = Text("┌" + "┬".join([inner] * size) + "┐\n")
    for r, row in enumerate(problem.panels):
        if r:
            text.append("├" + "┼".join([inner] * size) + "┤\n")
        for c, panel in enumerate(row):
            text.append("│ ")
            is_query = problem.is_query(r, c)
            style = "bold" if is_query else ""
            for position, value in enumerate(panel):
                shown = "?" if is_query and not answer else shown_value(value)
                colour = feature_colour(problem.permutations[c][position]) if answer else ""
                text.append(f"{shown:>{width}}", f"{style} {colour}".strip())
                text.append(" ")
        text.append("│\n")
    text.append("└" + "┴".join([inner] * size) + "┘")
    if answer:
        text.append("\n\n")
        text.append_text(_rules_text(problem))
    return text


def _rules_text(problem: Problem) -> Text:
    name_width = max(map(len, (*problem.rules, "rule")))
    width = len(str(problem.config.num_values - 1))
    rows = [
        [
            " ".join(f"{shown_value(value):>{width}}" for value in row)
            for row in problem.rows(feature)
        ]
        for feature in range(len(problem.rules))
    ]
    row_width = max(len(rows[0][0]), len("row 1"))
    headings = (f"row {r + 1}".ljust(row_width) for r in range(len(problem.panels)))
    text = Text(f"  {'rule':<{name_width}}   {'   '.join(headings)}   positions", "bold")
    for feature, rule in enumerate(problem.rules):
        places = (problem.position(feature, c) + 1 for c in range(problem.config.grid_size))
        text.append("\n● ", feature_colour(feature))
        text.append(f"{rule:<{name_width}}   ")
        text.append("   ".join(f"{row:<{row_width}}" for row in rows[feature]))
        text.append("   " + " → ".join(map(str, places)))
    return text


def draw_numbers(problem: Problem, *, answer: bool = False) -> Picture:
    """The grid of panels, each a column of integers, as in Figure 3A; the query panel is marked.

    With `answer`, lines between the columns link the positions of the same feature, and its rule
    stands beside the last row.
    """
    size, num_features = problem.config.grid_size, problem.config.panel_size
    panel_width, panel_height = _CELL + 2 * _PADDING, num_features * _CELL + 2 * _PADDING
    step_x, step_y = panel_width + _GUTTER, panel_height + _ROW_GAP
    picture = Picture(
        width=2 * MARGIN
        + max(size * step_x - _GUTTER + _RULE_WIDTH * answer, header_width(problem)),
        height=MARGIN + HEADER + size * step_y - _ROW_GAP + MARGIN,
        description=describe(problem, answer=answer),
    )
    add_header(picture, problem)

    def cell_centre(row: int, column: int, position: int) -> tuple[float, float]:
        x = MARGIN + column * step_x + panel_width / 2
        return x, MARGIN + HEADER + row * step_y + _PADDING + (position + 0.5) * _CELL

    if answer:
        for row in range(size):
            for column in range(size - 1):
                for feature in range(num_features):
                    start = cell_centre(row, column, problem.position(feature, column))
                    end = cell_centre(row, column + 1, problem.position(feature, column + 1))
                    edges = (
                        (start[0] + panel_width / 2, start[1]),
                        (end[0] - panel_width / 2, end[1]),
                    )
                    picture.add(*_thread(*edges, colour=feature_colour(feature)))
    for r, panels in enumerate(problem.panels):
        for c, panel in enumerate(panels):
            is_query = problem.is_query(r, c)
            left, top = MARGIN + c * step_x, MARGIN + HEADER + r * step_y
            picture.add(panel_box(left, top, panel_width, panel_height, is_query=is_query))
            if is_query and not answer:
                centre = (left + panel_width / 2, top + panel_height / 2)
                picture.add(question_mark(*centre))
                continue
            for position, value in enumerate(panel):
                x, y = cell_centre(r, c, position)
                if answer:
                    picture.add(_chip(x, y, feature_colour(problem.permutations[c][position])))
                picture.add(Label(text=shown_value(value), x=x, y=y, size=17, anchor="middle"))
    if answer:
        for position, feature in enumerate(problem.permutations[-1]):
            x, y = cell_centre(size - 1, size - 1, position)
            rule = problem.rules[feature]
            picture.add(Label(text=rule, x=x + panel_width / 2 + 14, y=y, size=14))
    return picture


def describe(problem: Problem, *, answer: bool) -> str:
    """The grid in one line, for whoever does not see the drawing."""
    panels = [_spaced(panel) for row in problem.panels for panel in row]
    last = panels.pop()
    return (
        f"SRAVEN, {problem.address}: panels {', '.join(panels)}; "
        f"the last panel is {last if answer else 'asked for'}."
    )


def add_header(picture: Picture, problem: Problem) -> None:
    """Write what it is, and where it can be found, over a drawing."""
    y = MARGIN + 8
    picture.add(
        Label(text="SRAVEN", x=MARGIN, y=y, size=17, bold=True),
        Label(text=problem.address, x=MARGIN + _TITLE_WIDTH, y=y, size=14, colour=GREY),
    )


def header_width(problem: Problem) -> float:
    """The room that `add_header` needs; text is measured roughly, as its font is not known."""
    return _TITLE_WIDTH + 8 * len(problem.address)


def panel_box(x: float, y: float, width: float, height: float, *, is_query: bool) -> Box:
    """The frame of a panel; the query's is dashed."""
    return Box(
        x=x,
        y=y,
        width=width,
        height=height,
        radius=7,
        fill=PAPER if is_query else PALE,
        stroke=INK if is_query else mix(GREY, 0.5),
        line=1.8 if is_query else 1.2,
        dashed=is_query,
    )


def question_mark(x: float, y: float) -> Label:
    """What stands in the query panel while it is asked for."""
    return Label(text="?", x=x, y=y, size=34, bold=True, anchor="middle")


def _chip(x: float, y: float, colour: str) -> Box:
    side = _CELL - 6
    return Box(
        x=x - side / 2,
        y=y - side / 2,
        width=side,
        height=side,
        radius=6,
        fill=mix(colour, 0.25),
        stroke=colour,
        line=1.5,
    )


def _thread(start: tuple[float, float], end: tuple[float, float], *, colour: str) -> list[Outline]:
    """A line that leaves and arrives horizontally, with a white edge where it crosses others."""
    steps = 24
    points = []
    for i in range(steps + 1):
        share = i / steps
        eased = share * share * (3 - 2 * share)
        x = start[0] + share * (end[0] - start[0])
        points.append((x, start[1] + eased * (end[1] - start[1])))
    line = tuple(points)
    return [
        Outline(points=line, closed=False, stroke=PAPER, line=5.5),
        Outline(points=line, closed=False, stroke=colour, line=2.5),
    ]


def _spaced(values: Panel) -> str:
    return " ".join(map(shown_value, values))

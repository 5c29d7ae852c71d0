"""An SRAVEN instance drawn with shapes, after Figure 3B.

Each position of a panel drives one visual attribute. This is an illustration: the task itself is
symbolic, and the order of shapes or the arithmetic of shades means nothing to the eye, so a key
under the grid translates every attribute back to its integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from hyla._colours import VERMILION
from hyla.tasks.sraven.config import BLANK
from hyla.tasks.sraven.faces.picture import INK, PAPER, Item, Label, Outline, Picture, Point, mix
from hyla.tasks.sraven.faces.rendering import (
    GREY,
    HEADER,
    MARGIN,
    add_header,
    describe,
    header_width,
    panel_box,
    question_mark,
)
from hyla.tasks.sraven.problem import Problem

ATTRIBUTES: tuple[str, ...] = ("shape", "number", "shade", "direction")
"""What positions 1, 2, 3 and 4 of a panel drive."""
MAX_VALUES = 8

_PANEL = 122
_GAP = 14
_RADIUS = 12.0  # of the circle around a shape
_SPACING = 36
_KEY_CELL = 38
_KEY_LABELS = 78
_LINE = 22
DARKEST = "#12355B"

# How many shapes stand in each line, for one shape to eight.
_ARRANGEMENTS = ((1,), (2,), (3,), (2, 2), (3, 2), (3, 3), (2, 3, 2), (3, 2, 3))


def draw_shapes(problem: Problem, *, answer: bool = False) -> Picture:
    """The grid with each position of a panel as an attribute of its shapes, and the key to them.

    With `answer` the query panel is filled in, and the rules are listed with the attribute that
    each of them governs in each column.
    """
    config = problem.config
    if config.panel_size > len(ATTRIBUTES) or config.num_values > MAX_VALUES:
        raise ValueError(
            f"shapes can show up to {len(ATTRIBUTES)} features of up to {MAX_VALUES} values, got "
            f"{config.panel_size} of {config.num_values}; draw the instance with numbers instead"
        )
    if BLANK in problem.rules:
        raise ValueError("shapes have no blanks; draw the instance with numbers instead")
    size, num_features = config.grid_size, config.panel_size
    grid_side = size * (_PANEL + _GAP) - _GAP
    key_width = _KEY_LABELS + config.num_values * _KEY_CELL
    width = max(grid_side, key_width, header_width(problem))
    grid_top = MARGIN + HEADER
    key_top = grid_top + grid_side + 26
    rules_top = key_top + _LINE + num_features * _KEY_CELL + 16
    notes_top = rules_top + num_features * _LINE * answer + 14 * answer
    picture = Picture(
        width=width + 2 * MARGIN,
        height=notes_top + _LINE + MARGIN,
        description=describe(problem, answer=answer),
    )
    add_header(picture, problem)
    for r, row in enumerate(problem.panels):
        for c, panel in enumerate(row):
            x, y = MARGIN + c * (_PANEL + _GAP), grid_top + r * (_PANEL + _GAP)
            centre = (x + _PANEL / 2, y + _PANEL / 2)
            is_query = problem.is_query(r, c)
            picture.add(panel_box(x, y, _PANEL, _PANEL, is_query=is_query))
            if is_query and not answer:
                picture.add(question_mark(*centre))
            else:
                picture.add(*_panel_items(panel, centre, num_values=config.num_values))
    picture.add(*_key(num_features, config.num_values, x=MARGIN, y=key_top))
    if answer:
        picture.add(*_rules(problem, x=MARGIN, y=rules_top))
    note = "An illustration: the task itself consists of the integers."
    picture.add(Label(text=note, x=MARGIN, y=notes_top + _LINE / 2, size=12, colour=GREY))
    return picture


def _panel_items(values: Sequence[int], centre: Point, *, num_values: int) -> Iterator[Item]:
    attributes = dict(zip(ATTRIBUTES, values, strict=False))
    arrangement = _ARRANGEMENTS[attributes["number"]]
    top = centre[1] - (len(arrangement) - 1) / 2 * _SPACING
    for line, count in enumerate(arrangement):
        first = centre[0] - (count - 1) / 2 * _SPACING
        for place in range(count):
            here = (first + place * _SPACING, top + line * _SPACING)
            yield from _figure(here, attributes, num_values=num_values)


def _figure(centre: Point, attributes: dict[str, int], *, num_values: int) -> Iterator[Item]:
    """One shape; attributes that are not there are left neutral."""
    shade = attributes.get("shade")
    darkness = 0.35 if shade is None else shade / (num_values - 1)
    yield Outline(
        points=tuple(
            (centre[0] + _RADIUS * x, centre[1] + _RADIUS * y)
            for x, y in _SHAPES[attributes.get("shape", 0)]()
        ),
        fill=mix(DARKEST, darkness),
        stroke=INK,
        line=1.4,
    )
    if "direction" in attributes:
        # A hand, as on a clock, long enough to be seen outside any shape; 0 points up.
        angle = 2 * math.pi * attributes["direction"] / num_values
        x, y = math.sin(angle), -math.cos(angle)
        hand = (centre, (centre[0] + 1.5 * _RADIUS * x, centre[1] + 1.5 * _RADIUS * y))
        yield Outline(points=hand, closed=False, stroke=PAPER, line=5)
        yield Outline(points=hand, closed=False, stroke=VERMILION, line=2.6)


def _key(num_features: int, num_values: int, *, x: float, y: float) -> Iterator[Item]:
    """A table of what each integer looks like."""
    for value in range(num_values):
        here = x + _KEY_LABELS + (value + 0.5) * _KEY_CELL
        label = str(value)
        yield Label(text=label, x=here, y=y + _LINE / 2, size=13, colour=GREY, anchor="middle")
    for position, attribute in enumerate(ATTRIBUTES[:num_features]):
        middle = y + _LINE + (position + 0.5) * _KEY_CELL
        yield Label(text=attribute, x=x, y=middle, size=13)
        for value in range(num_values):
            here = (x + _KEY_LABELS + (value + 0.5) * _KEY_CELL, middle)
            if attribute == "number":
                yield Label(text=f"{value + 1}×", x=here[0], y=middle, size=14, anchor="middle")
            else:
                yield from _figure(here, {attribute: value}, num_values=num_values)


def _rules(problem: Problem, *, x: float, y: float) -> Iterator[Item]:
    """A line for each feature: its rule, and the attribute that shows it in each column."""
    for feature, rule in enumerate(problem.rules):
        middle = y + (feature + 0.5) * _LINE
        places = (problem.position(feature, c) for c in range(problem.config.grid_size))
        path = " → ".join(ATTRIBUTES[place] for place in places)
        yield Label(text=rule, x=x, y=middle, size=14)
        yield Label(text=path, x=x + 146, y=middle, size=13, colour=GREY)


def _polygon(*points: Point) -> Callable[[], Sequence[Point]]:
    return lambda: points


def _arc(start: float, end: float) -> Callable[[], Sequence[Point]]:
    """Points of the unit circle between two shares of a turn, clockwise from the top."""
    steps = 40
    angles = (2 * math.pi * (start + (end - start) * i / (steps - 1)) for i in range(steps))
    return _polygon(*((math.sin(angle), -math.cos(angle)) for angle in angles))


def _star() -> Sequence[Point]:
    corners = ((1.1 if i % 2 == 0 else 0.46, 2 * math.pi * i / 10) for i in range(10))
    return [(radius * math.sin(angle), -radius * math.cos(angle)) for radius, angle in corners]


# On the unit circle, y downwards; chosen so that no two look alike at 24 pixels.
_SHAPES: tuple[Callable[[], Sequence[Point]], ...] = (
    _arc(0, 1),
    _polygon((0, -1.05), (1, 0.8), (-1, 0.8)),
    _polygon((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    _polygon((0, -1.15), (0.7, 0), (0, 1.15), (-0.7, 0)),
    _star,
    _polygon(
        *((-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35), (1, 0.35), (0.35, 0.35)),
        *((0.35, 1), (-0.35, 1), (-0.35, 0.35), (-1, 0.35), (-1, -0.35), (-0.35, -0.35)),
    ),
    _polygon((-0.85, -1), (0.85, -1), (0.12, 0), (0.85, 1), (-0.85, 1), (-0.12, 0)),
    _arc(-0.25, 0.25),
)

"""What figures consist of, whoever draws them: matplotlib for files, plotly for the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hyla._colours import BLUE, GREEN, ORANGE, PINK, SKY, VERMILION

# Okabe and Ito's, then what is still free.
PALETTE = (
    *(VERMILION, BLUE, GREEN, PINK, ORANGE, SKY),
    "#000000",
    "#7F7F7F",
    "#7030A0",
    "#8C564B",
    "#B8A000",
    "#9ACD32",
)
LEVEL_COLOUR = "#808080"
"""Of what is no method's: levels to compare with."""
SIGNED_COLOURS = (PALETTE[0], "#FFFFFF", PALETTE[1])
"""Below zero, at zero and above it: orange and blue, as in the explorer."""
_MOST_TICKS = 12
_MOST_NUMBERS_ABREAST = 10
METHOD_COLOURS = {"hyla": PALETTE[0], "softmax": PALETTE[1], "linear": PALETTE[2]}


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of `Lines` or one colour of `Bars`."""

    name: str
    y: Sequence[float]
    errors: Sequence[float] | Sequence[tuple[float, float]] = ()
    """How far an error bar reaches: to both sides, or below and above."""
    colour: str
    dashed: bool = False

    @property
    def reach(self) -> tuple[list[float], list[float]] | None:
        """How far the error bars reach below and above; None if there are none."""
        if not self.errors:
            return None
        sides = [error if isinstance(error, tuple) else (error, error) for error in self.errors]
        return [below for below, _ in sides], [above for _, above in sides]


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line to compare with: the paper's number, the ceiling."""

    name: str
    y: float


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Scores over something that was varied; `x` holds numbers, or names at equal distances."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float] | Sequence[str]
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    y_range: tuple[float, float] | None = None

    @property
    def named(self) -> bool:
        """Whether `x` holds names."""
        return any(isinstance(x, str) for x in self.x)

    @property
    def ticked(self) -> bool:
        """Whether every `x` is a tick and a point; the course of a training, say, is a line."""
        return self.named or len(self.x) <= _MOST_TICKS


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Scores by group, a bar per series in each; `x` names the groups."""

    title: str
    y_label: str
    x: Sequence[str]
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Points:
    """A cloud of points, coloured by a number (`label` says which) or by a class."""

    title: str
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[float] | Sequence[str]
    label: str
    class_colours: Mapping[str, str] = field(default_factory=dict)
    """The colour of each class; none where the values are numbers."""
    value_range: tuple[float, float] | None = None
    notes: Sequence[str] = ()
    """What a page says of each point to who points at it; lines end with a newline."""


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """A matrix with names on both sides; `x_label` and `y_label` say of what."""

    title: str
    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    label: str
    value_range: tuple[float, float] | None = None
    x_label: str = ""
    y_label: str = ""
    signed: bool = False
    """Whether zero is the middle: white, between the colours of negative and positive numbers."""

    @property
    def scale(self) -> tuple[float, float] | None:
        """The numbers between which colours run; None leaves it to whoever draws."""
        if self.value_range is not None or not self.signed:
            return self.value_range
        largest = max((abs(v) for row in self.values for v in row if v == v), default=0) or 1.0
        return -largest, largest

    @property
    def named_rows(self) -> int:
        """How many rows have a name, for which there has to be room."""
        return sum(map(bool, self.rows))

    @property
    def numbered(self) -> bool:
        """Whether there is room for the numbers themselves: a map grows with the named rows."""
        return self.named_rows == len(self.rows) and len(self.columns) <= _MOST_NUMBERS_ABREAST

    @property
    def number_format(self) -> str:
        """How its numbers are written: all with the same digits, and counts without any."""
        counted = all(isinstance(value, int) for row in self.values for value in row)
        return ".0f" if counted else ".2f"


Panel = Lines | Bars | Points | Heatmap


def shared_scales(row: Sequence[Panel]) -> list[tuple[str, list[int]]]:
    """Return the scales of colours that a row of panels needs: what it is of, and for which.

    Panels of the same range share one.
    """
    sharing: dict[Any, list[int]] = {}
    for i, panel in enumerate(row):
        if isinstance(panel, Heatmap) or (isinstance(panel, Points) and not panel.class_colours):
            sharing.setdefault((panel.label, panel.value_range or panel.title), []).append(i)
    return [(label, places) for (label, _), places in sharing.items()]


def said_once(panels: Sequence[Sequence[Panel]], row: int, column: int) -> tuple[bool, bool]:
    """Return whether the names beside a panel, and those below it, stand at another one already.

    That is the panel left of it, or the one below it. Of lines and bars it is what they show, of a
    map its rows and columns too.
    """
    panel = panels[row][column]
    left = panels[row][column - 1] if column else None
    lower = panels[row + 1] if row + 1 < len(panels) else ()
    below = lower[column] if column < len(lower) else None
    match panel:
        case Heatmap():
            return (
                isinstance(left, Heatmap)
                and (left.rows, left.y_label) == (panel.rows, panel.y_label),
                isinstance(below, Heatmap)
                and (below.columns, below.x_label) == (panel.columns, panel.x_label),
            )
        case Lines() | Bars():
            return isinstance(left, Lines | Bars) and left.y_label == panel.y_label, False
        case _:
            return False, False


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels in rows, as the paper arranges them.

    They share a legend: a name means the same colour in all of them.
    """

    panels: Sequence[Sequence[Panel]]
    note: str = ""
    """What has to be known to read it, such as where it departs from the paper."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""

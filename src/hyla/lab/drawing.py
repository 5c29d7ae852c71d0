"""What figures consist of, whoever draws them: matplotlib for files, plotly for the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Okabe and Ito's palette, told apart by colour-blind readers too; then what is still free.
PALETTE = (
    "#D55E00",
    "#0072B2",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#7F7F7F",
    "#7030A0",
    "#8C564B",
    "#B8A000",
    "#9ACD32",
)
METHOD_COLOURS = {"hyla": PALETTE[0], "softmax": PALETTE[1], "linear": PALETTE[2]}


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of `Lines` or one colour of `Bars`; `errors` are half the length of the bars."""

    name: str
    y: Sequence[float]
    errors: Sequence[float] = ()
    colour: str
    dashed: bool = False


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


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """A matrix with names on both sides."""

    title: str
    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    label: str
    value_range: tuple[float, float] | None = None

    @property
    def named_rows(self) -> int:
        """How many rows have a name, for which there has to be room."""
        return sum(map(bool, self.rows))

    @property
    def numbered(self) -> bool:
        """Whether there is room for the numbers themselves."""
        return len(self.rows) * len(self.columns) <= 100


Panel = Lines | Bars | Points | Heatmap


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

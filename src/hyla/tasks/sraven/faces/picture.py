"""A picture as a list of boxes, outlines and labels, written as SVG or as PNG.

Coordinates are pixels, y downwards. Both formats draw the same list, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from hyla._optional import needed

if TYPE_CHECKING:
    from matplotlib.artist import Artist

INK = "#1F2933"
PAPER = "#FFFFFF"

_FONTS = ("Helvetica", "Arial", "DejaVu Sans", "sans-serif")
_DASHES = (5, 4)
_PIXELS_PER_INCH = 100
_POINTS_PER_PIXEL = 72 / _PIXELS_PER_INCH
_ALIGNMENTS: dict[str, Literal["left", "center", "right"]] = {
    "start": "left",
    "middle": "center",
    "end": "right",
}
_CAP_HEIGHT = 0.72  # of the font size: what centres a capital or a digit on its line

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle, with round corners if `radius` is not 0; a circle if it is half the side."""

    x: float
    y: float
    width: float
    height: float
    radius: float = 0
    fill: str = "none"
    stroke: str = "none"
    line: float = 1
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A polygon, or a line through points."""

    points: tuple[Point, ...]
    closed: bool = True
    fill: str = "none"
    stroke: str = "none"
    line: float = 1


@dataclass(frozen=True, kw_only=True)
class Label:
    """A line of text, centred vertically on y."""

    text: str
    x: float
    y: float
    size: float = 14
    colour: str = INK
    bold: bool = False
    anchor: Literal["start", "middle", "end"] = "start"


Item: TypeAlias = Box | Outline | Label


@dataclass(kw_only=True)
class Picture:
    """What is drawn, from back to front, on white paper of a size in pixels."""

    width: float
    height: float
    description: str
    """What it shows, in words, for readers who do not see it."""
    items: list[Item] = field(default_factory=list)

    def add(self, *items: Item) -> None:
        """Draw over what is there."""
        self.items += items

    def svg(self) -> str:
        """The picture as an SVG document."""
        size = f'width="{_number(self.width)}" height="{_number(self.height)}"'
        box = f'viewBox="0 0 {_number(self.width)} {_number(self.height)}"'
        fonts = ", ".join(f"'{font}'" if " " in font else font for font in _FONTS)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} role="img" '
            f'font-family="{fonts}" stroke-linejoin="round" stroke-linecap="round">',
            f"<title>{escape(self.description)}</title>",
            f'<rect width="100%" height="100%" fill="{PAPER}"/>',
            *map(_svg_element, self.items),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def write_svg(self, path: Path) -> None:
        """Write the SVG document."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.svg(), encoding="utf-8")

    def write_png(self, path: Path, *, scale: float = 2) -> None:
        """Write the picture with `scale` pixels for each of its own."""
        with needed("figures", "PNG needs matplotlib (SVG needs nothing)"):
            from matplotlib.figure import Figure
        figure = Figure(
            figsize=(self.width / _PIXELS_PER_INCH, self.height / _PIXELS_PER_INCH), facecolor=PAPER
        )
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        for order, item in enumerate(self.items):
            artist = _matplotlib_artist(item)
            artist.set_zorder(order)  # otherwise text lies over everything
            axes.add_artist(artist)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=scale * _PIXELS_PER_INCH)


def mix(colour: str, share: float, other: str = PAPER) -> str:
    """A colour between two, with `share` of the first."""
    parts = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02X}" for a, b in parts)


def _channels(colour: str) -> Sequence[int]:
    return bytes.fromhex(colour.removeprefix("#"))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _svg_element(item: Item) -> str:
    match item:
        case Box():
            place = {"x": item.x, "y": item.y, "width": item.width, "height": item.height}
            attributes = " ".join(f'{name}="{_number(value)}"' for name, value in place.items())
            dashes = f' stroke-dasharray="{_DASHES[0]} {_DASHES[1]}"' if item.dashed else ""
            return f'<rect {attributes} rx="{_number(item.radius)}" {_svg_paint(item)}{dashes}/>'
        case Outline():
            points = " ".join(f"{_number(x)},{_number(y)}" for x, y in item.points)
            tag = "polygon" if item.closed else "polyline"
            return f'<{tag} points="{points}" {_svg_paint(item)}/>'
        case Label():
            # Not dominant-baseline, which half of the programs that read SVG ignore.
            baseline = item.y + item.size * _CAP_HEIGHT / 2
            weight = ' font-weight="bold"' if item.bold else ""
            return (
                f'<text x="{_number(item.x)}" y="{_number(baseline)}" '
                f'font-size="{_number(item.size)}" fill="{item.colour}" '
                f'text-anchor="{item.anchor}"{weight}>{escape(item.text)}</text>'
            )


def _svg_paint(item: Box | Outline) -> str:
    return f'fill="{item.fill}" stroke="{item.stroke}" stroke-width="{_number(item.line)}"'


def _matplotlib_artist(item: Item) -> Artist:
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path as Vertices
    from matplotlib.text import Text

    if isinstance(item, Label):
        return Text(
            item.x,
            item.y + item.size * _CAP_HEIGHT / 2,
            item.text,
            fontsize=item.size * _POINTS_PER_PIXEL,
            color=item.colour,
            fontweight="bold" if item.bold else "normal",
            # Only fonts that are there: matplotlib warns about each that is not.
            fontfamily="DejaVu Sans",
            horizontalalignment=_ALIGNMENTS[item.anchor],
            verticalalignment="baseline",
        )
    paint = {
        "facecolor": item.fill,
        "edgecolor": item.stroke,
        "linewidth": item.line * _POINTS_PER_PIXEL,
        "joinstyle": "round",
        "capstyle": "round",
    }
    if isinstance(item, Outline):
        ends = [item.points[0]] if item.closed else []
        return PathPatch(Vertices([*item.points, *ends], closed=item.closed), **paint)
    dashes = (0, [length / item.line for length in _DASHES]) if item.dashed else "solid"
    return FancyBboxPatch(
        (item.x, item.y),
        item.width,
        item.height,
        boxstyle=f"round,pad=0,rounding_size={item.radius}" if item.radius else "square,pad=0",
        linestyle=dashes,
        **paint,
    )

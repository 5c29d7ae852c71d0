"""Pages of figures that are one file, such as the demo's, on a light and on a dark ground."""

from pathlib import Path

import pytest
from page_watch import WIDTHS
from playwright.sync_api import Browser

from hyla.figures.draw_plotly import write_page
from hyla.figures.drawing import Bars, Figure, Lines, Series

BLACK, BLUE = "#000000", "#0072B2"


def page_of_figures(folder: Path) -> str:
    panels = [
        Lines(
            title="lines",
            x_label="x",
            y_label="R²",
            x=["1", "2"],
            series=[
                Series(name=name, y=[0.1, 0.9], colour=colour)
                for name, colour in (("black", BLACK), ("blue", BLUE))
            ],
        ),
        Bars(
            title="bars",
            y_label="R²",
            x=["a"],
            series=[Series(name="bar", y=[0.5], errors=[0.1], colour=BLUE)],
        ),
    ]
    figure = Figure(panels=[panels], note="How it is read.")
    write_page(folder / "page.html", "Figures", [("Both", figure)], findings=["It works."])
    return (folder / "page.html").as_uri()


def lightness(colour: str) -> float:
    """Of `rgb(1, 2, 3)`, between 0 and 1."""
    red, green, blue = map(float, colour.removeprefix("rgb(").removesuffix(")").split(","))
    return (red + green + blue) / 3 / 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_axes_and_black_lines_stand_out_on_either_ground(
    browser: Browser, tmp_path: Path, scheme: str
):
    context = browser.new_context(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    page = context.new_page()
    page.goto(page_of_figures(tmp_path))

    def computed(selector: str, name: str) -> str:
        return page.locator(selector).first.evaluate(
            "(element, name) => getComputedStyle(element)[name]", name
        )

    ground = lightness(computed("body", "backgroundColor"))
    assert (ground < 0.2) == (scheme == "dark")
    for selector, name in (
        (".xtick text", "fill"),
        (".g-ytitle text", "fill"),
        (".legendtext", "fill"),
        (".annotation-text", "fill"),
        (".js-line", "stroke"),
        (".barlayer .errorbar path", "stroke"),
        (".conclusion", "color"),
    ):
        assert abs(lightness(computed(selector, name)) - ground) > 0.5, selector
    lines = page.locator(".scatterlayer .js-line")
    blue = lines.nth(1).evaluate("element => getComputedStyle(element).stroke")
    assert blue == "rgb(0, 114, 178)"  # a colour that means something stays what it is
    context.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_wide_figure_scrolls_by_itself(browser: Browser, tmp_path: Path, width: int):
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(page_of_figures(tmp_path))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()

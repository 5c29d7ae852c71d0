"""Pictures of the explorer for the documentation, of both widths, and of the dark colours.

    python tests/explorer/browser/screenshots.py docs/images --runs runs

They are looked at by eye; nothing is compared with them. The runs are those of the Compare view.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from page_watch import WIDTHS, launch, visiting
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from hyla.explorer.gallery import open_gallery
from hyla.explorer.runs import RunFolder
from hyla.explorer.web.app import build_app
from hyla.explorer.web.security import Access
from hyla.explorer.web.server import serving

PUZZLE = "model=sraven-hyla&seed=1044&split=held-out&permuted=false"


def _choose_two(page: Page) -> None:
    page.locator("input[name=position-0][value='2']").check()
    page.locator("input[name=position-1][value='3']").check()


def _nothing(page: Page) -> None:
    del page


class Scene(NamedTuple):
    """What is shown, and what is done before the picture is taken."""

    fragment: str
    act: Callable[[Page], None] = _nothing


SCENES = {
    "puzzle": Scene(f"#/puzzle?{PUZZLE}", _choose_two),
    "answer": Scene(
        "#/puzzle?model=sraven-hyla&seed=1044&split=held-out&permuted=true&show=numbers&answer=3,1,2,0"
    ),
    "code": Scene(f"#/code?{PUZZLE}"),
    "swap": Scene(f"#/swap?{PUZZLE}&rule=subtraction"),
    "fuzzy": Scene("#/fuzzy?terms=pnp.npp&query=0.35,0.6,0.8&variable=1"),
    "compare": Scene("#/compare"),
}


def take(browser: Browser, address: str, out: Path, name: str, width: int, dark: bool) -> None:
    fragment, act = SCENES[name]
    scheme = "dark" if dark else "light"
    with visiting(browser, address, width, color_scheme=scheme) as visit:
        page = visit.open(fragment)
        visit.settle()
        act(page)
        page.mouse.move(0, 0)
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(500)  # fades end
        picture = Image.open(BytesIO(page.screenshot(full_page=True)))
    path = out / f"explorer-{name}-{width}{'-dark' * dark}.png"
    reduced(picture.convert("RGB")).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def reduced(picture: Image.Image) -> Image.Image:
    """The picture in 256 colours, at a third of the size.

    Half of them are its most frequent ones, so that surfaces stay as they are; the others cover the
    range, so that small dots do.
    """
    raw = picture.tobytes()
    pixels = Counter(zip(raw[::3], raw[1::3], raw[2::3], strict=True))
    frequent = [channel for colour, _ in pixels.most_common(128) for channel in colour]
    covering = picture.quantize(128, Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*frequent, *covering][: 3 * 256])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--only", choices=SCENES, nargs="+", default=list(SCENES))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    app = build_app(open_gallery([]), RunFolder(given.runs), Access())
    with sync_playwright() as playwright, serving(app) as address:
        browser = launch(playwright)
        for name in given.only:
            for width in WIDTHS:
                take(browser, address, given.out, name, width, dark=False)
            take(browser, address, given.out, name, WIDTHS[0], dark=True)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())

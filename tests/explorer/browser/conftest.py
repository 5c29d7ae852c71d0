from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from explorer_fixtures import config_of
from page_watch import WIDTHS, Visit, launch, visiting
from playwright.sync_api import Browser, sync_playwright

from hyla.explorer.gallery import open_gallery
from hyla.explorer.runs import RunFolder
from hyla.explorer.web.app import build_app
from hyla.explorer.web.security import Access
from hyla.explorer.web.server import serving
from hyla.training import train

Visiting = Callable[..., AbstractContextManager[Visit]]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for attention in ("hyla", "softmax"):
        train(config_of("fuzzy", attention=attention), root=root, device="cpu")
    train(config_of("sraven"), root=root, device="cpu")
    return root


@pytest.fixture(scope="session")
def address(browser: Browser, run_folder: Path) -> Iterator[str]:
    with serving(build_app(open_gallery([]), RunFolder(run_folder), Access())) as address:
        yield address


@pytest.fixture
def visit_at(browser: Browser, address: str) -> Visiting:
    """Starts visits of a given width; other options are the browser's."""
    return partial(visiting, browser, address)


@pytest.fixture(params=WIDTHS, ids="{}px".format)
def visit(visit_at: Visiting, request: pytest.FixtureRequest) -> Iterator[Visit]:
    with visit_at(request.param) as visit:
        yield visit


@pytest.fixture
def desk(visit_at: Visiting) -> Iterator[Visit]:
    """What does not depend on the width is tried on the wide screen alone."""
    with visit_at(WIDTHS[0]) as visit:
        yield visit

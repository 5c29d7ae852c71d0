"""The explorer as its visitors have it: a real browser, the real server, the shipped models."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Playwright, Request, Response, expect

WIDTHS = (1280, 390)
"""A desktop's and a telephone's."""
VIEWS = ("puzzle", "code", "swap", "fuzzy", "compare")

_HEIGHT = 900
_PATIENCE = 90_000  # milliseconds: maps of codes take seconds, and cores may be shared
_BUSY = 503  # no problem of the page, which asks again
# Chromium would otherwise look for updates, translations and the like: this machine may be offline.
_QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
)


def launch(playwright: Playwright) -> Browser:
    expect.set_options(timeout=_PATIENCE)
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("needs the system's Chromium: apt-get install chromium")
    return playwright.chromium.launch(executable_path=executable, args=_QUIET)


class Visit:
    """A browser of one's own, with nothing stored, that notes what should not happen."""

    def __init__(self, browser: Browser, address: str, width: int, **options: Any) -> None:
        self.address = address
        self.problems: list[str] = []
        size: Any = {"width": width, "height": _HEIGHT}
        self.context = browser.new_context(viewport=size, **options)
        self.context.set_default_timeout(_PATIENCE)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on(
            "requestfailed", lambda request: self.problems.append(f"failed: {request.url}")
        )
        self.page.on("request", self._check_host)
        self.page.on("response", self._check_status)

    def open(self, fragment: str = "") -> Page:
        self.page.goto(f"{self.address}{fragment}")
        self.page.locator("h1").wait_for()
        return self.page

    def settle(self) -> None:
        """Wait until nothing is being computed or loaded."""
        expect(self.page.locator("[aria-busy]")).to_have_count(0)
        self.page.wait_for_load_state("networkidle")

    def ask(self, path: str, **parameters: Any) -> Any:
        """What the server says to a test that asks by itself."""
        response = self.page.request.get(f"{self.address}api/{path}", params=parameters)
        assert response.ok, response.text()
        return response.json()

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and f"status of {_BUSY} " not in text:
            self.problems.append(f"console {kind}: {text}")

    def _check_host(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc:
            self.problems.append(f"foreign request: {request.url}")

    def _check_status(self, response: Response) -> None:
        if response.status >= 400 and response.status != _BUSY:
            self.problems.append(f"{response.status}: {response.url}")


@contextmanager
def visiting(browser: Browser, address: str, width: int, **options: Any) -> Iterator[Visit]:
    """A visit in whose course nothing goes wrong."""
    visit = Visit(browser, address, width, **options)
    try:
        yield visit
        assert not visit.problems, visit.problems
    finally:
        visit.context.close()

"""`make docs`: the site is complete, builds without a warning, and loads nothing from elsewhere."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from markdown_blocks import ROOT

# What a browser fetches by itself; a link that a reader may follow is another matter.
FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\" >]+)"
)


def nav_pages(entries) -> list[str]:
    return [
        page
        for entry in entries
        for value in entry.values()
        for page in ([value] if isinstance(value, str) else nav_pages(value))
    ]


def test_every_page_is_in_the_navigation():
    config = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    on_disk = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    listed = nav_pages(config["nav"])
    assert set(listed) == on_disk
    assert len(listed) == len(on_disk)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "zensical.toml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "src").symlink_to(ROOT / "src")
    done = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_nothing_comes_from_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert not FETCHED.findall(page.read_text(encoding="utf-8")), page.name
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\(\"?https?:|@import", sheet.read_text(encoding="utf-8"))


def test_the_reference_is_made_of_docstrings(site):
    reference = (site / "api" / "attention.html").read_text(encoding="utf-8")
    assert "Attend from each query to all keys" in reference
    assert ":::" not in "".join(p.read_text(encoding="utf-8") for p in site.glob("api/*.html"))

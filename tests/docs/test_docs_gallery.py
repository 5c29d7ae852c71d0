"""The gallery shows every figure of the report, with a command that draws it again."""

from markdown_blocks import ROOT

import gallery


def test_the_page_is_what_the_tool_writes():
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(), "run tools/gallery.py"


def test_every_figure_is_shown():
    shown = gallery.PAGE.read_text(encoding="utf-8")
    for picture in gallery.STORE.glob("*/figures/*.png"):
        assert f"](../{picture.relative_to(ROOT).as_posix()})" in shown

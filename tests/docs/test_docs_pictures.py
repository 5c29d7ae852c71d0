"""Pictures of the pages are drawn from what was measured, which the pages quote."""

import json

import pytest
from markdown_blocks import ROOT

import pictures


def test_the_pictures_are_drawn_and_shown(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    shown = {path.name for path in pictures.IMAGES.glob("sraven-*.png")}
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    pictures.main()
    assert {path.name for path in tmp_path.iterdir()} == shown | {"effect.png"}
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/images/effect.png)" in front
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert all(f"](images/{name})" in findings for name in shown)


@pytest.mark.parametrize("model", ["hyla", "softmax"])
def test_the_table_of_the_page_is_the_measured_curve(model: str):
    page = (ROOT / "docs" / "sraven.md").read_text(encoding="utf-8").replace("**", "")
    measured = json.loads((pictures.MEASURED / f"think-{model}.json").read_text())
    column = {("hyla", "search"): 2, ("hyla", "again"): 3}
    column |= {("softmax", "search"): 4, ("softmax", "again"): 5}
    for row in measured["rows"]:
        [line] = [
            line
            for line in page.splitlines()
            if line.startswith(f"| {row['passes']} ({row['steps']}) |")
        ]
        low, high = (100 * end for end in row["interval"])
        text = f"{100 * row['right'] / row['of']:.1f} ({low:.1f} to {high:.1f})"
        assert line.split("|")[column[model, row["method"]]].strip() == text

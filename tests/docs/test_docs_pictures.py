"""Pictures of the pages are drawn from what was measured, which the pages quote."""

import json

import pytest
from markdown_blocks import ROOT

import pictures
from hyla.figures.drawing import Bars


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


def test_audits_are_drawn_by_criterion():
    def audit(share: float) -> list[dict]:
        train = {"split": "train", "ambiguous_by_definition_se": 0.1, "ambiguous_by_authors_se": 0}
        train |= {"ambiguous_by_definition": share, "ambiguous_by_authors": share / 100}
        return [{"split": "ood"}, train]

    [[panel]] = pictures.ambiguity_figure({16: audit(0.08), 4: audit(0.6)}).panels
    assert isinstance(panel, Bars)
    assert panel.x == ["K = 4", "K = 16"]
    assert [list(one.y) for one in panel.series] == [[0.6, 0.08], [0.006, 0.0008], [0.0642, 0.0005]]

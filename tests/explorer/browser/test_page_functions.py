"""Fuzzy logic functions, and runs beside each other."""

import re
import shutil
from pathlib import Path

from explorer_fixtures import subject_of
from page_watch import Visit
from playwright.sync_api import Page, expect

from hyla.explorer.gallery import Gallery, open_gallery
from hyla.explorer.runs import RunFolder
from hyla.explorer.web.app import build_app
from hyla.explorer.web.security import Access
from hyla.explorer.web.server import serving
from hyla.figures.drawing import METHOD_COLOURS


def target(page: Page) -> float:
    return float(page.locator(".predictions .target dd").inner_text())


def test_a_function_is_drawn_the_query_moved_and_models_answer(visit: Visit, visit_at):
    page = visit.open("#/fuzzy?query=0.9,0.2,0.7&terms=ppp.nnn")
    models = [m for m in visit.ask("about")["models"] if m["task"] == "fuzzy"]
    expect(page.locator(".predictions dl > div")).to_have_count(1 + len(models))
    assert target(page) == 0.2  # min(0.9, 0.2, 0.7), which is more than min(0.1, 0.8, 0.3)
    expect(page.locator(".formula")).to_have_text("x1∧x2∧x3 ∨ ¬x1∧¬x2∧¬x3")

    page.get_by_role("group", name="Term 1").get_by_role("button", name="not x2").click()
    expect(page.locator(".predictions .target dd")).to_have_text("0.70")
    expect(page.locator(".formula")).to_have_text("x1∧¬x2∧x3 ∨ ¬x1∧¬x2∧¬x3")

    page.get_by_role("slider", name="x₁").focus()
    page.keyboard.press("Home")
    expect(page.locator(".predictions .target dd")).to_have_text("0.30")
    visit.settle()
    assert "query=0,0.2,0.7" in page.url

    with visit_at(390) as other:
        elsewhere = other.open(page.url.removeprefix(visit.address))
        expect(elsewhere.locator(".predictions .target dd")).to_have_text("0.30")
        predicted = page.locator(".predictions dd").all_text_contents()
        assert elsewhere.locator(".predictions dd").all_text_contents() == predicted


def test_terms_come_and_go_and_the_chart_follows_a_variable(desk: Visit):
    page = desk.open("#/fuzzy")
    expect(page.locator(".chart .nsewdrag")).to_be_visible()
    page.get_by_role("button", name="Add a term").click()
    expect(page.get_by_role("group", name="Term 3")).to_be_visible()
    expect(page.get_by_text("never saw functions like this").first).to_be_visible()
    page.get_by_role("button", name="Remove term 3").click()
    expect(page.get_by_role("group", name="Term 3")).to_have_count(0)
    page.get_by_label("x₂", exact=True).and_(page.get_by_role("radio")).check()
    expect(page.get_by_role("img", name="while x₂ goes from 0 to 1")).to_be_visible()
    desk.settle()


def test_names_of_variables(desk: Visit):
    names = desk.open("#/fuzzy").evaluate(
        "import('/static/js/terms.js').then(({ variableName }) => [0, 8, 9, 15].map(variableName))"
    )
    assert names == ["x₁", "x₉", "x₁₀", "x₁₆"]


def test_of_many_models_some_are_shown(desk: Visit, tmp_path):
    many = Gallery([subject_of("fuzzy", id=f"run:{i}", seed=i) for i in range(18)])
    with serving(build_app(many, RunFolder(tmp_path), Access())) as desk.address:
        page = desk.open("#/fuzzy")
        expect(page.locator(".predictions dl > div")).to_have_count(1 + 8)
        boxes = page.get_by_role("group", name="Models, up to 8").get_by_role("checkbox")
        boxes.nth(9).click()  # one too many
        expect(boxes.nth(9)).not_to_be_checked()
        boxes.nth(0).uncheck()
        boxes.nth(9).check()
        expect(page.locator(".predictions dl > div")).to_have_count(1 + 8)
        desk.settle()


def test_a_click_into_the_chart_moves_the_query(desk: Visit):
    page = desk.open("#/fuzzy?query=0.5,0.5,0.5&variable=1")
    expect(page.locator(".chart .nsewdrag")).to_be_visible()
    desk.settle()
    area = page.locator(".chart .nsewdrag")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.24 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"query=0\.5,0\.2\d?,0\.5"))
    desk.settle()


def test_the_examples_are_those_of_the_seed(desk: Visit):
    page = desk.open("#/fuzzy?seed=3")
    page.get_by_text("examples as numbers").click()
    rows = page.locator(".examples tbody tr")
    expect(rows.first).to_be_visible()
    before = rows.all_text_contents()
    page.get_by_label("Other examples: seed").fill("4")
    page.get_by_label("Other examples: seed").press("Enter")
    expect(page).to_have_url(re.compile("seed=4"))
    page.get_by_text("examples as numbers").click()
    expect(rows.first).not_to_have_text(before[0])
    assert rows.count() == len(before)


def test_runs_are_compared(visit: Visit, visit_at):
    page = visit.open("#/compare")
    runs = visit.ask("runs")["runs"]
    expect(page.locator("tbody tr")).to_have_count(len(runs))
    curves = page.get_by_role("img", name=re.compile("along training of"))
    expect(curves).to_have_attribute("aria-label", "ood/r2 along training of 2 runs")
    expect(page.get_by_role("img", name=re.compile("hyla.*: ID .*, OOD"))).to_be_visible()

    fuzzy = [run for run in runs if run["task"] == "fuzzy"]
    page.get_by_label(f"Compare {fuzzy[0]['id']}").uncheck()
    expect(curves).to_have_attribute("aria-label", "ood/r2 along training of 1 runs")
    page.get_by_label("Metric").select_option("test/loss")
    expect(curves).to_have_attribute("aria-label", "test/loss along training of 1 runs")

    with visit_at(1280) as other:
        elsewhere = other.open(page.url.removeprefix(visit.address))
        again = elsewhere.get_by_role("img", name=re.compile("along training of"))
        expect(again).to_have_attribute("aria-label", "test/loss along training of 1 runs")
        expect(elsewhere.get_by_label(f"Compare {fuzzy[1]['id']}")).to_be_checked()
        expect(elsewhere.get_by_label(f"Compare {fuzzy[0]['id']}")).not_to_be_checked()


def test_lines_have_the_colour_of_their_attention_and_differ(desk: Visit):
    styles = desk.open("#/fuzzy").evaluate(
        """() => import('/static/js/palette.js').then(({ lineStyles }) => lineStyles(
            ["hyla", "softmax", "hyla", "linear", "hyla", "hyla", "hyla", "hyla", "hyla"]
                .map((attention, id) => ({ id, attention }))))"""
    )
    for id, attention in enumerate(("hyla", "softmax")):
        assert styles[str(id)] == {"colour": METHOD_COLOURS[attention].lower(), "dash": "solid"}
    assert styles["3"]["colour"] == METHOD_COLOURS["linear"].lower()
    assert len({tuple(style.values()) for style in styles.values()}) == len(styles)


def test_an_unfinished_run_says_how_far_it_is_and_a_bad_start_does_not_hide_it(
    desk: Visit, run_folder: Path, tmp_path: Path
):
    run = next(run_folder.glob("fuzzy-hyla-*"))
    shutil.copytree(run, tmp_path / "young")
    (tmp_path / "young" / "finished.json").unlink()
    (tmp_path / "young" / "metrics.jsonl").write_text(
        '{"step": 8, "ood/r2": [-70.0, -50.0], "test/r2": [0.5, 0.5]}\n'
        '{"step": 16, "ood/r2": [0.2, 0.4], "test/r2": [0.5, 0.5]}\n'
    )
    app = build_app(open_gallery([]), RunFolder(tmp_path), Access())
    with serving(app) as desk.address:
        page = desk.open("#/compare")
        expect(page.get_by_role("cell", name="16 / 24")).to_be_visible()
        expect(page.locator(".chart .ytitle").first).to_have_text("ood/r2 (cut at −1)")
        lowest = page.locator(".chart").first.evaluate("chart => chart.layout.yaxis.range[0]")
        assert -1.2 < lowest < -1
        desk.settle()
        assert "runs=young&metric=ood%2Fr2" in page.url


def test_an_empty_store_says_how_to_fill_it(desk: Visit, tmp_path):
    app = build_app(open_gallery([]), RunFolder(tmp_path), Access())
    with serving(app) as desk.address:
        page = desk.open("#/compare")
        expect(page.get_by_text("There are no runs in the folder yet")).to_be_visible()

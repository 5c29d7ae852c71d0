"""Solving puzzles: what a person does, and what the page then shows and counts."""

import re

import pytest
from page_watch import Visit
from playwright.sync_api import Locator, Page, expect

from hyla.figures.drawing import METHOD_COLOURS

PUZZLE = {"model": "sraven-hyla", "seed": 1044, "split": "held-out", "permuted": "false"}


def fragment(**changes: object) -> str:
    return "#/puzzle?" + "&".join(f"{name}={value}" for name, value in (PUZZLE | changes).items())


def truth(visit: Visit, **changes: object) -> dict:
    instance = visit.ask("sraven/instance", **(PUZZLE | changes))
    return visit.ask("sraven/reveal", id=instance["id"])


def choose(page: Page, values: list[int]) -> None:
    for position, value in enumerate(values):
        page.locator(f"input[name=position-{position}][value='{value}']").check()


def score(page: Page) -> list[str]:
    return page.locator(".score dd").all_text_contents()


def asked_panel(page: Page) -> Locator:
    return page.get_by_role("img", name="the panel asked for")


def open_controls(page: Page) -> None:
    """On a small screen they are folded."""
    summary = page.get_by_text("Choose a model and a puzzle")
    if summary.is_visible():
        summary.click()


def test_a_right_answer_is_told_explained_and_counted(visit: Visit):
    page = visit.open(fragment())
    revealed = truth(visit)
    expect(page.locator(".puzzle [role=img]")).to_have_count(9)
    expect(page.get_by_role("heading", name="The rules were")).to_have_count(0)
    assert score(page) == ["0/0", "0/0", "0/0"]

    choose(page, revealed["target"])
    page.get_by_role("button", name="Answer", exact=True).click()

    answers = page.get_by_role("region", name="Answers")
    expect(answers.locator("li").first).to_contain_text("right")
    expect(page.locator(".rules h3")).to_have_text(
        [
            f["rule"].replace("_", " ").replace("-", " −").replace("+", " +")
            for f in revealed["features"]
        ]
    )
    expect(page.locator(".charts svg")).to_have_count(4)
    expect(page.get_by_text("the puzzle is not ambiguous")).to_be_visible()
    assert score(page)[0] == "1/1"
    assert score(page)[2] == "1/1"


def test_a_wrong_answer_is_counted_once_and_the_score_can_be_reset(desk: Visit):
    page = desk.open(fragment())
    target = truth(desk)["target"]
    wrong = [(target[0] + 1) % 8, *target[1:]]
    choose(page, wrong)
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(page.locator(".answers li").first).to_contain_text("wrong")
    assert score(page)[0] == "0/1"

    page.reload()
    expect(page.locator(".answers li").first).to_contain_text("wrong")
    assert score(page)[0] == "0/1"
    page.get_by_role("button", name="Reset").click()
    assert score(page) == ["0/0", "0/0", "0/0"]


def test_the_model_and_the_solver_are_shown_as_the_server_has_them(desk: Visit):
    page = desk.open(fragment(seed=1, answer="none"))
    instance = desk.ask("sraven/instance", **(PUZZLE | {"seed": 1}))
    answers = desk.ask("sraven/answers", model="sraven-hyla", id=instance["id"])
    for name, key in (("HYLA as recommended", "model"), ("Exact solver", "solver")):
        values = ", ".join(
            f"{attribute} {value}"
            for attribute, value in zip(
                ("shape", "number", "shade", "direction"), answers[key]["values"], strict=True
            )
        )
        expect(page.get_by_role("img", name=f"{name}: {values}")).to_be_visible()
    assert answers["solver"]["ambiguous_by_definition"]
    expect(
        page.get_by_text(f"{answers['solver']['num_answers']} different panels fit")
    ).to_be_visible()
    assert score(page) == ["0/0", "0/0", "0/0"]  # who only looks does not play


@pytest.mark.parametrize(
    ("model", "attention", "colour"),
    [
        ("sraven-hyla", "hyla", "rgb(213, 94, 0)"),
        ("sraven-softmax", "softmax", "rgb(0, 114, 178)"),
    ],
)
def test_bars_have_the_colour_of_the_attention(desk: Visit, model, attention, colour):
    page = desk.open(fragment(model=model, answer="none"))
    bar = page.locator(f".charts .bar.{attention}").first
    expect(bar).to_have_css("fill", colour)
    assert colour == "rgb({}, {}, {})".format(
        *bytes.fromhex(METHOD_COLOURS[attention].removeprefix("#"))
    )


def test_a_link_restores_the_puzzle_and_the_answer_and_counts_nothing(desk: Visit, visit_at):
    page = desk.open(fragment(permuted="true", show="numbers"))
    choose(page, [1, 2, 3, 4])
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(page.locator(".answers")).to_be_visible()
    shown = page.locator(".board").inner_html()
    verdict = page.locator(".outcome h2").inner_text()

    with visit_at(1280) as other:
        elsewhere = other.open(page.url.removeprefix(desk.address))
        expect(elsewhere.locator(".outcome h2")).to_have_text(verdict)
        assert elsewhere.locator(".board").inner_html() == shown
        expect(elsewhere.get_by_role("img", name="You: position 1 1, position 2 2")).to_be_visible()
        assert score(elsewhere) == ["0/0", "0/0", "0/0"]


def test_the_keyboard_alone_solves_puzzle_after_puzzle(desk: Visit):
    page = desk.open(fragment())
    expect(page.locator("form.answer")).to_be_visible()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "position-0":
            break
    page.keyboard.press("3")
    page.keyboard.press("ArrowRight")  # from the first value of the next line to its second
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(asked_panel(page)).to_have_attribute(
        "aria-label", re.compile("shape 2, number 2, shade open, direction open")
    )
    page.keyboard.press("ArrowDown")
    for digit in "456":
        page.keyboard.press(digit)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Next puzzle")).to_be_focused()
    assert "answer=2,4,5,6" in page.url
    assert score(page)[0].endswith("/1")

    page.keyboard.press("Enter")
    expect(page.locator("input[name=position-0]").first).to_be_focused()
    assert "answer" not in page.url
    assert "seed=1044&" not in page.url


def test_an_incomplete_answer_is_not_taken(desk: Visit):
    page = desk.open(fragment())
    choose(page, [1, 2])
    page.get_by_role("button", name="Answer", exact=True).click()
    assert "answer" not in page.url
    assert page.evaluate("document.activeElement.name") == "position-2"


def test_puzzles_are_chosen_by_split_order_rules_and_number(visit: Visit):
    page = visit.open(fragment())
    open_controls(page)
    expect(page.get_by_text("never together in training")).to_be_visible()
    page.get_by_label("Seen", exact=True).check()
    expect(page.get_by_text("seen together in training")).to_be_visible()
    page.get_by_label("Shuffled").check()
    page.get_by_label("Puzzle number").fill("123")
    page.get_by_label("Puzzle number").press("Enter")
    expect(page).to_have_url(re.compile("seed=123.*permuted=true|permuted=true.*seed=123"))

    page.get_by_label("My choice").check()
    rules = ["addition", "addition", "constant", "distribute_three"]
    for number, rule in enumerate(rules, start=1):
        page.get_by_label(f"Rule {number} of 4").select_option(rule)
    page.get_by_role("button", name="Show the answer").click()
    expect(page.locator(".rules > li")).to_have_count(4)
    shown = [name.replace(" ", "_") for name in page.locator(".rules h3").all_text_contents()]
    assert sorted(shown) == rules

    before = page.url
    page.get_by_role("button", name="New puzzle").click()
    expect(page.locator("form.answer")).to_be_visible()
    assert page.url != before
    page.go_back()
    expect(page.locator(".rules > li")).to_have_count(4)
    assert page.url == before


def test_another_model_answers_the_same_puzzle(desk: Visit):
    page = desk.open(fragment())
    expect(page.locator("form.answer")).to_be_visible()
    panels = page.locator(".puzzle [role=img]").evaluate_all("all => all.map(e => e.ariaLabel)")
    open_controls(page)
    page.get_by_label("Model").select_option("sraven-softmax")
    page.get_by_role("button", name="Show the answer").click()
    expect(page.locator(".answers h3").nth(1)).to_have_text("Softmax")
    again = page.locator(".puzzle [role=img]").evaluate_all("all => all.map(e => e.ariaLabel)")
    assert again[:8] == panels[:8]


@pytest.mark.parametrize("mode", ["shapes", "numbers"])
def test_what_is_chosen_survives_a_change_of_the_drawing(desk: Visit, mode: str):
    other = {"shapes": "Numbers", "numbers": "Shapes"}[mode]
    page = desk.open(fragment(show=mode))
    choose(page, [5])
    page.get_by_label(other).check()
    expect(page.locator("input[name=position-0][value='5']")).to_be_checked()
    expect(asked_panel(page)).to_have_attribute("aria-label", re.compile(" 5, "))

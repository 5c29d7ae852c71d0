"""What holds in every view: nothing goes wrong, nothing sticks out, all can be reached and read."""

import re

import pytest
from explorer_fixtures import subject_of
from page_watch import VIEWS, Visit
from playwright.sync_api import Page, Route, expect

from hyla.explorer.gallery import Gallery, open_gallery
from hyla.explorer.runs import RunFolder
from hyla.explorer.web.app import build_app
from hyla.explorer.web.security import Access
from hyla.explorer.web.server import serving

CONTENT = {
    "puzzle": "form.answer",
    "code": ".layers article",
    "swap": ".swap-verdict",
    "fuzzy": ".predictions dl",
    "compare": "table.runs",
}

# On the screen; 14 px would be that of usual puzzles on a screen that is not wide.
LETTER_HEIGHT = "text => 14 * text.getScreenCTM().a"


def brightness(page: Page) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_every_view_fits_its_screen_and_is_reached_by_the_keyboard(visit: Visit):
    page = visit.open()
    for view in VIEWS:
        link = page.get_by_role("navigation").locator(f"a[href^='#/{view}']")
        link.focus()
        page.keyboard.press("Enter")
        expect(page.locator(CONTENT[view]).first).to_be_visible()
        expect(link).to_have_attribute("aria-current", "page")
        visit.settle()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, view


@pytest.mark.parametrize("fragment", [*VIEWS, "puzzle?answer=none"])
def test_no_view_sticks_out_where_others_are_enlarged_four_times(visit_at, fragment: str):
    with visit_at(320) as visit:  # 1280 pixels at 400 %: what WCAG asks of a page
        page = visit.open(f"#/{fragment}")
        visit.settle()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_all_that_can_be_operated_has_a_name_and_shows_its_focus(desk: Visit):
    for view in VIEWS:
        page = desk.open(f"#/{view}")
        expect(page.locator(CONTENT[view]).first).to_be_visible()
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("a, button, input, select")]
                .filter(e => !(e.ariaLabel || e.textContent.trim()
                    || [...(e.labels ?? [])].some(label => label.textContent.trim())))
                .map(e => e.outerHTML)"""
        )
        assert unnamed == [], view
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", view


def test_the_skip_link_leaves_the_state_alone(desk: Visit):
    page = desk.open("#/puzzle?seed=5")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert "#/puzzle?seed=5&" in page.url


@pytest.mark.parametrize("view", ["puzzle", "fuzzy"])
def test_colours_follow_the_system_and_then_the_visitor(visit_at, view: str):
    with visit_at(1280, color_scheme="dark") as visit:
        page = visit.open(f"#/{view}")
        toggle = page.get_by_role("button", name="Dark colours")
        expect(toggle).to_have_attribute("aria-pressed", "true")
        assert brightness(page) < 60
        visit.settle()
        toggle.click()
        assert brightness(page) > 200
        page.reload()
        expect(toggle).to_have_attribute("aria-pressed", "false")
        assert brightness(page) > 200


def test_the_page_lives_with_a_strict_policy(desk: Visit):
    # Under it, the other tests see no console errors: nothing inline is needed.
    page = desk.open("#/compare")
    expect(page.locator(".chart .nsewdrag")).to_have_count(2)
    policy = page.request.get(desk.address).headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy


def test_what_a_link_says_is_never_read_as_markup(desk: Visit):
    page = desk.open("#/puzzle?model=<img src=x onerror=alert(1)>")
    expect(page.get_by_role("alert")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("main img").count() == 0
    assert [p.partition(":")[0] for p in desk.problems] == ["404", "console error"]
    desk.problems.clear()


def test_a_busy_server_is_asked_again(desk: Visit):
    refusals = iter([True, True])

    def refuse_twice(route: Route) -> None:
        if next(refusals, False):
            route.fulfill(status=503, json={"error": "busy"})
        else:
            route.continue_()

    desk.page.route("**/api/sraven/instance*", refuse_twice)
    with desk.page.expect_response(lambda r: "sraven/instance" in r.url and r.status == 200):
        desk.open("#/puzzle")
    assert next(refusals, None) is None
    expect(desk.page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("view", ["puzzle", "code", "swap"])
def test_a_model_that_is_not_here_is_told_and_nothing_else(desk: Visit, view: str):
    page = desk.open(f"#/{view}?model=nobody")
    expect(page.get_by_role("alert").first).to_contain_text("there is no model 'nobody'")
    desk.settle()
    expect(page.get_by_text("undefined")).to_have_count(0)
    assert {p.partition(":")[0] for p in desk.problems} == {"404", "console error"}
    desk.problems.clear()


def test_a_link_says_all_that_another_explorer_would_choose_otherwise(desk: Visit, tmp_path):
    links = []
    for view in ("puzzle", "code", "swap", "fuzzy"):
        page = desk.open(f"#/{view}")
        expect(page.locator(CONTENT[view]).first).to_be_visible()
        desk.settle()
        links.append(page.url.partition("#")[2])
    for link in links[:3]:
        assert "model=sraven-hyla&seed=1044&split=held-out&permuted=false" in link
    assert "layer=3" in links[1]
    assert "layers=0,1,2,3" in links[2]
    assert "models=fuzzy-hyla,fuzzy-softmax" in links[3]
    # Where other models come first, a link shows its own all the same.
    first = [subject_of("sraven"), subject_of("fuzzy")]
    gallery = Gallery([*first, *open_gallery([]).subjects.values()])
    with serving(build_app(gallery, RunFolder(tmp_path), Access())) as desk.address:
        page = desk.open(f"#{links[0]}")
        expect(page.locator("form.answer fieldset")).to_have_count(4)
        page = desk.open(f"#{links[3]}")
        expect(page.locator(".predictions dt")).to_have_text(
            ["Target", "HYLA as recommended", "Softmax"]
        )
        desk.settle()
    # Where they are not, that is told.
    with serving(build_app(Gallery(first), RunFolder(tmp_path), Access())) as desk.address:
        page = desk.open(f"#{links[3]}")
        expect(page.get_by_text("models that are not here: fuzzy-hyla, fuzzy-soft")).to_be_visible()
        desk.settle()


@pytest.mark.parametrize("answer", ["1,2", "1,2,3,9", "a,b,c,d"])
def test_an_answer_that_does_not_fit_the_puzzle_is_dropped(desk: Visit, answer: str):
    page = desk.open(f"#/puzzle?answer={answer}")
    expect(page.locator("form.answer")).to_be_visible()
    desk.settle()
    assert "answer=" not in page.url
    expect(page.get_by_role("heading", name="The rules were")).to_have_count(0)


@pytest.mark.parametrize(("view", "label"), [("puzzle", "Puzzle number"), ("fuzzy", "seed")])
def test_a_number_may_be_written_in_any_way(desk: Visit, view: str, label: str):
    page = desk.open(f"#/{view}")
    desk.settle()
    seed = page.get_by_label(label)
    seed.fill("1e3")
    seed.press("Enter")
    expect(page).to_have_url(re.compile("seed=1000(&|$)"))
    desk.settle()


@pytest.mark.parametrize("view", ["constructor", "nothing", ""])
def test_a_view_that_there_is_not_is_the_first_one(desk: Visit, view: str):
    page = desk.open(f"#/{view}")
    expect(page.locator("form.answer")).to_be_visible()


def test_charts_that_were_replaced_are_let_go(desk: Visit):
    page = desk.open("#/code")
    desk.settle()
    page.evaluate(
        """() => {
            window.purged = 0;
            const { purge } = Plotly;
            Plotly.purge = (place) => { window.purged += 1; return purge(place); };
        }"""
    )
    page.get_by_role("group", name="Layer").get_by_label("1").check()
    expect(page.get_by_role("img", name="Map of codes in layer 1")).to_be_visible()
    desk.settle()
    assert page.evaluate("window.purged") == 1


def test_a_server_that_is_gone_is_told_and_tried_again(desk: Visit):
    page = desk.open("#/puzzle")
    expect(page.locator("form.answer")).to_be_visible()
    page.route("**/api/sraven/**", lambda route: route.abort())
    page.get_by_role("button", name="New puzzle").click()
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    page.unroute("**/api/sraven/**")
    page.get_by_role("button", name="New puzzle").click()
    expect(page.locator("form.answer")).to_be_visible()
    desk.problems.clear()


def test_models_of_another_size_and_missing_tasks_are_no_obstacle(desk: Visit, tmp_path):
    app = build_app(Gallery([subject_of("sraven")]), RunFolder(tmp_path), Access())
    with serving(app) as desk.address:
        page = desk.open("#/puzzle?answer=none")
        expect(page.locator(".rules > li")).to_have_count(2)
        assert page.locator(".bars .tick").first.evaluate(LETTER_HEIGHT) < 22
        page = desk.open("#/fuzzy")
        expect(page.get_by_text("This view needs a model of fuzzy logic")).to_be_visible()


def test_functions_of_several_sizes_are_offered_one_at_a_time(desk: Visit, tmp_path):
    gallery = Gallery([*open_gallery([]).subjects.values(), subject_of("fuzzy")])
    with serving(build_app(gallery, RunFolder(tmp_path), Access())) as desk.address:
        page = desk.open("#/fuzzy")
        expect(page.get_by_text("The 15 examples as numbers")).to_be_visible()
        page.get_by_label("Functions of").select_option("3 variables, 2 terms, 5 examples")
        expect(page.get_by_text("The 5 examples as numbers")).to_be_visible()
        expect(page.locator(".predictions dt")).to_have_text(["Target", "HYLA"])
        desk.settle()

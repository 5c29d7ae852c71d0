"""Instances for human eyes: what is shown is what the tensors hold, and no more than was asked."""

import re
from xml.etree import ElementTree

import pytest

from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.tasks.sraven.faces.picture import Box, Label, Outline, Picture, mix
from hyla.tasks.sraven.faces.rendering import draw_numbers, to_text
from hyla.tasks.sraven.faces.shapes import ATTRIBUTES, draw_shapes
from hyla.tasks.sraven.problem import Problem, Problems

CONFIGS = {
    "paper": SravenConfig(),
    "small": SravenConfig(num_features=2, num_values=4),
    "large": SravenConfig(
        num_features=6, num_values=12, grid_size=4, rules=("constant", "addition", "subtraction")
    ),
}


def problem_of(name: str, split: str = "ood", index: int = 3) -> Problem:
    return Problems(CONFIGS[name], split, seed=0)[index]


def labels(picture: Picture) -> list[str]:
    return [item.text for item in picture.items if isinstance(item, Label)]


@pytest.mark.parametrize("split", ["train", "ood", "test_unpermuted"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_problem_is_the_instance_of_the_same_address_in_a_batch(name: str, split: str):
    config = CONFIGS[name]
    batch = Sraven(config).sampler(split, seeds=[5, 7], batch_size=16).instances(2)
    problem = Problems(config, split, seed=7)[2 * 16 + 9]
    assert problem.panels == tuple(
        tuple(tuple(panel) for panel in row) for row in batch.panels[1, 9].tolist()
    )
    assert problem.rules == tuple(config.rules[i] for i in batch.rules[1, 9].tolist())
    assert [list(p) for p in problem.permutations] == batch.permutations[1, 9].tolist()
    assert problem.permuted == (split != "test_unpermuted")


def test_rows_restore_the_order_that_the_rules_speak_of():
    problem = problem_of("paper")
    assert problem.rules == ("constant", "progression+1", "addition", "progression+2")
    for a, b, c in problem.rows(0):
        assert a == b == c
    for a, b, c in problem.rows(1):
        assert (b, c) == ((a + 1) % 8, (b + 1) % 8)
    for a, b, c in problem.rows(2):
        assert c == (a + b) % 8


@pytest.mark.parametrize("name", CONFIGS)
def test_text_holds_the_numbers_in_order(name: str):
    problem = problem_of(name)
    shown = [int(x) for x in re.findall(r"\d+", to_text(problem).plain)]
    values = [value for row in problem.panels for panel in row for value in panel]
    assert shown == values[: -problem.config.num_features]
    assert to_text(problem).plain.count("?") == problem.config.num_features


@pytest.mark.parametrize("name", CONFIGS)
def test_lines_of_the_grid_are_equally_long(name: str):
    lines = to_text(problem_of(name)).plain.splitlines()
    assert len({len(line) for line in lines}) == 1


def test_text_gives_nothing_away_before_it_is_asked():
    problem = problem_of("paper")
    assert {str(span.style) for span in to_text(problem).spans} <= {"", "bold"}
    assert not any(rule in to_text(problem).plain for rule in problem.rules)


def test_text_with_the_answer():
    shown = to_text(problem_of("paper"), answer=True).plain
    assert "?" not in shown
    assert "│ 5 4 7 4 │" in shown
    assert re.search(r"progression\+1 +1 2 3 +7 0 1 +5 6 7 +3 → 1 → 3", shown)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_list_of_rules_is_aligned(name: str):
    problem = problem_of(name)
    *_, heading = to_text(problem, answer=True).plain.splitlines()[: -len(problem.rules)]
    for line in to_text(problem, answer=True).plain.splitlines()[-len(problem.rules) :]:
        assert line[heading.index("positions") - 1] == " "
        assert line[heading.index("positions")].isdigit()


@pytest.mark.parametrize("draw", [draw_numbers, draw_shapes])
@pytest.mark.parametrize("answer", [False, True])
def test_svg_is_well_formed_and_within_its_frame(draw, answer: bool):
    picture = draw(problem_of("paper"), answer=answer)
    root = ElementTree.fromstring(picture.svg())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for item in picture.items:
        corners = {
            Box: lambda box: [(box.x, box.y), (box.x + box.width, box.y + box.height)],
            Outline: lambda outline: outline.points,
            Label: lambda label: [(label.x, label.y)],
        }[type(item)](item)
        assert all(0 <= x <= picture.width and 0 <= y <= picture.height for x, y in corners)


@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_are_drawn_as_they_are(name: str):
    problem = problem_of(name)
    values = [str(value) for row in problem.panels for panel in row for value in panel]
    drawn = [text for text in labels(draw_numbers(problem)) if text.isdigit() or text == "?"]
    assert drawn == [*values[: -problem.config.num_features], "?"]
    drawn = [text for text in labels(draw_numbers(problem, answer=True)) if text.isdigit()]
    assert drawn == values


def test_drawings_hide_the_answer_until_it_is_asked_for():
    problem = problem_of("paper")
    for draw in (draw_numbers, draw_shapes):
        hidden, shown = (labels(draw(problem, answer=answer)) for answer in (False, True))
        assert "?" in hidden
        assert not set(problem.rules) & set(hidden)
        assert "?" not in shown
        assert set(problem.rules) <= set(shown)
    assert "5 4 7 4" not in draw_numbers(problem).description


def test_numbers_of_shapes_are_the_second_position():
    problem = problem_of("small")
    key = 4  # shapes in the key to the first attribute; the second has numbers in words
    shapes = [item for item in draw_shapes(problem, answer=True).items if isinstance(item, Outline)]
    assert len(shapes) == key + sum(panel[1] + 1 for row in problem.panels for panel in row)


def test_shapes_say_that_they_are_an_illustration():
    shown = labels(draw_shapes(problem_of("paper")))
    assert any("illustration" in text for text in shown)
    assert set(ATTRIBUTES) <= set(shown)


def test_shapes_refuse_what_they_cannot_show():
    with pytest.raises(ValueError, match="up to 4 features of up to 8 values, got 6 of 12"):
        draw_shapes(problem_of("large"))


@pytest.mark.parametrize("draw", [draw_numbers, draw_shapes])
def test_png(draw, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    picture = draw(problem_of("paper"), answer=True)
    path = tmp_path / "new" / "picture.png"
    picture.write_png(path, scale=1)
    height, width, _ = imread(path).shape
    assert (width, height) == pytest.approx((picture.width, picture.height), abs=1)


def test_svg_escapes_text():
    picture = Picture(width=10, height=10, description="a < b & c")
    picture.add(Label(text="<&>", x=1, y=1))
    [text] = ElementTree.fromstring(picture.svg()).iter("{http://www.w3.org/2000/svg}text")
    assert text.text == "<&>"


def test_mix_goes_from_one_colour_to_the_other():
    assert mix("#102030", 1) == "#102030"
    assert mix("#102030", 0, "#FFFFFF") == "#FFFFFF"
    assert mix("#000000", 0.5, "#FFFFFF") == "#808080"

"""Prompts say what the tensors hold; replies are scored whatever stands around the answer."""

import re

import pytest

from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.tasks.sraven.faces.prompts import parse_answer, score_answer, to_answer, to_prompt
from hyla.tasks.sraven.problem import Problems

TARGET = (3, 1, 4, 2)


def panels_in(prompt: str) -> list[list[int]]:
    lists = re.findall(r"\[([\d, ]+)\]", prompt)
    return [[int(value) for value in found.split(",")] for found in lists]


@pytest.mark.parametrize("split", ["train", "ood_unpermuted"])
@pytest.mark.parametrize("num_features", [2, 4, 6])
def test_the_prompt_shows_the_context_and_hides_the_answer(num_features: int, split: str):
    config = SravenConfig(num_features=num_features)
    problem = Problems(config, split, seed=1)[5]
    prompt = to_prompt(problem.panels, config=config, permuted=problem.permuted)
    context = [list(panel) for row in problem.panels for panel in row][:-1]
    assert panels_in(prompt) == context
    assert prompt.count("?,") == num_features - 1
    assert ("each column has an order of its own" in prompt) == (split == "train")


def test_equal_last_panels_are_not_confused():
    config = SravenConfig(num_features=2)
    grid = [[[1, 2]] * 3] * 3
    assert panels_in(to_prompt(grid, config=config)) == [[1, 2]] * 8


def test_tensors_and_lists_give_the_same_prompt():
    config = SravenConfig()
    instances = Sraven(config).sampler("test", seeds=[0], batch_size=4).instances(0)
    prompt = to_prompt(instances.panels[0, 3], config=config)
    assert prompt == to_prompt(Problems(config, "test", seed=0)[3].panels, config=config)


def test_every_rule_is_explained_or_none():
    config = SravenConfig(rules=tuple(RULES))
    panels = Problems(config, "test", seed=0)[0].panels
    assert "as its name says" not in to_prompt(panels, config=config)
    assert "progression" in to_prompt(panels, config=config)
    assert "progression" not in to_prompt(panels, config=config, explain_rules=False)


def test_a_grid_of_another_size_is_refused():
    panels = Problems(SravenConfig(), "test", seed=0)[0].panels
    with pytest.raises(ValueError, match="3 × 3 panels of 5 integers"):
        to_prompt(panels, config=SravenConfig(num_features=5))


def test_a_value_out_of_range_is_refused_but_in_the_hidden_panel():
    grid = [[[1, 2] for _ in range(3)] for _ in range(3)]
    config = SravenConfig(num_features=2)
    grid[-1][-1] = [-1, -1]
    to_prompt(grid, config=config)
    grid[1][2][0] = 8
    with pytest.raises(ValueError, match=r"shows 8 at position 0 of the panel in row 1, column 2"):
        to_prompt(grid, config=config)


@pytest.mark.parametrize(
    "reply",
    [
        "[3, 1, 4, 2]",
        "3 1 4 2",
        "3,1,4,2",
        "(3; 1; 4; 2)",
        "The missing panel is **[3, 1, 4, 2]**.",
        "Answer: 3, 1, 4, 2.",
        "Panel 9: 3 1 4 2",
        "<answer>3 1 4 2</answer>",
        '{"answer": [3, 1, 4, 2]}',
        r"\boxed{3, 1, 4, 2}",
        "[3,\n 1,\n 4,\n 2]",
        "First I thought [0, 0, 0, 0], but it is [3, 1, 4, 2].",
        "Row 1: [1, 2, 3, 4] [5, 6, 7, 0]\nso [3, 1, 4, 2], checked in 2 ways.",
        "1 2 3 4\n3 1 4 2",
        "[ +3 , 1 , 4 , 2 , ]",
    ],
)
def test_the_last_list_counts_whatever_stands_around_it(reply: str):
    assert score_answer(reply, TARGET) == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I do not know.",
        "[3, 1, 4]",
        "[3, 1, 4, 2, 0]",
        "[2, 4, 1, 3]",
        "[3, 1, 4, 2] or rather [3, 1, 4, 3]",
        "3.1, 4.2",
        "3, 1, 4, 2.5",
        "-3 1 4 2",
        "x3 1 4 2y",
        "[?, ?, ?, ?]",
        "9" * 5000,
    ],
)
def test_anything_else_scores_nothing(reply: str):
    assert score_answer(reply, TARGET) == 0.0


def test_partial_credit_is_the_share_that_is_right():
    assert score_answer("[3, 1, 0, 0]", TARGET, partial_credit=True) == 0.5
    assert score_answer("[3, 1, 0, 0]", TARGET) == 0.0
    assert score_answer("nothing", TARGET, partial_credit=True) == 0.0
    assert score_answer("[3, 1, 4, 2]", TARGET, partial_credit=True) == 1.0


def test_answers_survive_the_round_trip():
    assert parse_answer(to_answer((10, 0, 7)), 3) == (10, 0, 7)


def test_a_long_reply_is_read_quickly():
    assert parse_answer("1, " * 200_000 + "x [3, 1, 4, 2]", 4) == TARGET

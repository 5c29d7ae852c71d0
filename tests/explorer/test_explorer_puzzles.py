"""Puzzles over the wire: the same for everybody, answered as the library answers them."""

import pytest
import torch
from fastapi.testclient import TestClient

from hyla.explorer.gallery import Gallery
from hyla.explorer.puzzles import _sentence, find_puzzle
from hyla.tasks.sraven import Solver, SravenConfig, ambiguous_by_authors

ASK = {"model": "sraven-tiny", "seed": 7}


def get(client: TestClient, path: str, expect: int = 200, **params):
    answer = client.get(f"/api/sraven/{path}", params=params)
    assert answer.status_code == expect, answer.text
    return answer.json()


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize("split", ["seen", "held-out"])
def test_a_puzzle_is_of_the_side_that_was_asked_for(client, gallery, split, permuted):
    shown = get(client, "instance", **ASK, split=split, permuted=permuted)
    assert (shown["split"], shown["permuted"]) == (split, permuted)
    assert len(shown["panels"]) == shown["grid"] ** 2 - 1
    subject = gallery["sraven-tiny"]
    side = subject.sraven.manifest(subject.seed).sides["train" if split == "seen" else "ood"]
    assert find_puzzle(gallery, shown["id"]).rules in side


def test_an_id_brings_the_puzzle_back(client):
    shown = get(client, "instance", **ASK)
    assert get(client, "puzzle", model="sraven-tiny", id=shown["id"]) == shown
    assert get(client, "instance", model="sraven-tiny", seed=8)["panels"] != shown["panels"]


def test_the_same_puzzle_for_another_model(client):
    shown = get(client, "instance", **ASK)
    other = get(client, "puzzle", model="sraven-softmax", id=shown["id"])
    assert other["panels"] == shown["panels"]


def test_rules_may_be_named_in_any_order(client, gallery):
    first, second = (
        get(client, "instance", **ASK, rules=rules)
        for rules in ("addition,constant", "constant,addition")
    )
    assert first == second
    assert sorted(find_puzzle(gallery, first["id"]).problem.rules) == ["addition", "constant"]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("addition,konstant", "did you mean 'constant'"),
        ("addition", "has 2 rules"),
        ("", "is no rule"),
    ],
)
def test_rules_that_there_are_not(client, rules, reason):
    assert reason in get(client, "instance", 409, **ASK, rules=rules)["error"]


@pytest.mark.parametrize("permuted", [True, False])
def test_answers_are_those_of_model_and_solver(client, gallery, permuted):
    id = get(client, "instance", **ASK, permuted=permuted)["id"]
    answers = get(client, "answers", model="sraven-tiny", id=id)
    puzzle = find_puzzle(gallery, id)
    with gallery["sraven-tiny"].lent() as model, torch.no_grad():
        logits = model(puzzle.inputs)[0, -2:]
    assert answers["model"]["values"] == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.tensor(answers["model"]["probabilities"]), logits.softmax(-1))
    assert answers["model"]["correct"] == (
        tuple(answers["model"]["values"]) == puzzle.problem.answer
    )

    panels = puzzle.panels.unsqueeze(0)
    solution = Solver(puzzle.problem.config)(panels, permuted=permuted)
    solver = answers["solver"]
    assert solver["values"] == solution.answer[0].tolist()
    assert solver["posterior"] == pytest.approx(float(solution.posterior))
    assert solver["num_answers"] == int(solution.num_answers)
    assert solver["ambiguous_by_definition"] == (solver["num_answers"] > 1)
    config = puzzle.problem.config
    by_authors = ambiguous_by_authors(panels, config, permuted=permuted)
    assert solver["ambiguous_by_authors"] == bool(by_authors)
    for place, row in enumerate(solver["probabilities"]):
        assert sum(row) == pytest.approx(1)
        for value, probability in enumerate(row):
            marginal = sum(p for panel, p in solution.answers(0) if panel[place] == value)
            assert probability == pytest.approx(marginal)


def test_the_reveal_follows_every_feature_through_the_grid(client, gallery):
    id = get(client, "instance", **ASK, permuted=True)["id"]
    revealed = get(client, "reveal", id=id)
    problem = find_puzzle(gallery, id).problem
    assert revealed["target"] == list(problem.answer)
    for feature in revealed["features"]:
        for r, row in enumerate(feature["rows"]):
            for c, place in enumerate(feature["positions"]):
                assert problem.panels[r][c][place] == row[c]
        assert str(feature["rows"][-1][-1]) in feature["sentence"]


@pytest.mark.parametrize(
    ("rule", "row", "says"),
    [
        ("constant", [5, 5, 5], "the same value: 5."),
        ("progression-2", [1, 7, 5], "falls by 2 (modulo 8) from panel to panel: 1, 7, then 5."),
        ("addition", [5, 6, 3], "5 + 6 = 3."),
        ("subtraction", [5, 6, 7], "5 − 6 = 7."),
        ("distribute_three", [4, 1, 2], "Every row shows 1, 2, 4 in some order"),
        ("minimum", [4, 1, 1], "the least of the others"),
        ("mine", [4, 1, 1], "The rule mine: 4, 1, then 1."),
    ],
)
def test_sentences(rule, row, says):
    assert says in _sentence(rule, [row, row, row], 8)


@pytest.mark.parametrize(
    ("id", "status"),
    [
        ("00000000.00.p.1", 404),  # of no shape that is known
        ("{shape}.10.p.1", 404),  # rules not sorted
        ("{shape}.000.p.1", 404),
        ("{shape}.0z.p.1", 404),
        ("{shape}.00.p.9999999999", 404),
        ("{shape}.00.x.1", 422),
        ("../../etc/passwd", 422),
    ],
)
def test_ids_that_name_no_puzzle(client, gallery, id, status):
    id = id.format(shape=gallery["sraven-tiny"].shape)
    assert "error" in get(client, "reveal", status, id=id)


def test_models_of_another_task_or_none(client):
    id = get(client, "instance", **ASK)["id"]
    assert "fuzzy logic" in get(client, "answers", 409, model="fuzzy-tiny", id=id)["error"]
    assert "did you mean" in get(client, "answers", 404, model="sraven-tin", id=id)["error"]


def test_a_fuzzy_shape_has_no_puzzles(client, gallery):
    id = f"{gallery['fuzzy-tiny'].shape}.00.p.1"
    assert "error" in get(client, "reveal", 409, id=id)


def test_what_there_is(client, gallery: Gallery):
    about = client.get("/api/about").json()
    assert [model["id"] for model in about["models"]] == list(gallery.subjects)
    assert about["sraven"]["rules"] == list(SravenConfig().rules)
    assert about["fuzzy"]["variables"] == 3
    assert about["sraven"]["pairs"] == [[17, 13], [17, 15]]

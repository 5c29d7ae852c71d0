"""Functions that a person draws."""

import pytest
import torch

from hyla.explorer.fuzzy import GRID
from hyla.tasks.fuzzy_logic import evaluate

TERMS = [[1, -1, 1], [-1, -1, 1]]
BODY = {
    "models": ["fuzzy-tiny", "fuzzy-linear"],
    "terms": TERMS,
    "seed": 4,
    "query": [0.5, 0.25, 1],
}


def post(client, path, expect=200, **changes):
    answer = client.post(f"/api/fuzzy/{path}", json=BODY | changes)
    assert answer.status_code == expect, answer.text
    return answer.json()


def by_hand(point):
    """The function of TERMS, written out."""
    x1, x2, x3 = point
    return max(min(x1, 1 - x2, x3), min(1 - x1, 1 - x2, x3))


def test_predictions_are_the_models(client, gallery):
    found = post(client, "predict")
    assert found["name"] == "x1∧¬x2∧x3 ∨ ¬x1∧¬x2∧x3"
    assert found["target"] == pytest.approx(by_hand(BODY["query"])) == 0.5
    assert len(found["context"]) == 5
    for example in found["context"]:
        assert example["y"] == pytest.approx(by_hand(example["x"]))
    tokens = [[*example["x"], example["y"]] for example in found["context"]]
    inputs = torch.tensor([[*tokens, [*BODY["query"], 0.0]]])
    for id, prediction in found["predictions"].items():
        with gallery[id].lent() as model, torch.no_grad():
            assert prediction == pytest.approx(float(model(inputs)[0, -1, 0]), abs=1e-5)


def test_the_context_is_the_seeds(client):
    first, again, other = (post(client, "predict", seed=seed)["context"] for seed in (1, 1, 2))
    assert first == again != other


def test_what_training_showed(client, gallery):
    subject = gallery["fuzzy-tiny"]
    sides = subject.fuzzy.manifest(subject.seed).sides

    def seen(*terms: int) -> str:
        signs = [[-1 if term >> i & 1 else 1 for i in range(3)] for term in terms]
        return post(client, "predict", terms=signs)["seen"]["fuzzy-tiny"]

    assert seen(*sides["train"][0]) == "seen"
    assert seen(*reversed(sides["ood"][0])) == "held-out"
    assert seen(0, 7) == "unknown term"
    assert seen(3) == seen(3, 3) == seen(0, 1, 2) == "other"


def test_a_slice_passes_through_the_query(client):
    found = post(client, "slice", variable=1)
    at_query = found["grid"].index(pytest.approx(0.25))
    predicted = post(client, "predict")
    assert len(found["grid"]) == len(found["target"]) == GRID
    assert found["target"][at_query] == pytest.approx(predicted["target"])
    for id, values in found["predictions"].items():
        assert values[at_query] == pytest.approx(predicted["predictions"][id], abs=1e-5)
    points = torch.tensor([[0.5, x, 1] for x in found["grid"]])
    negations = torch.tensor([[0.0, 1, 0], [1, 1, 0]])
    assert found["target"] == pytest.approx(evaluate(negations, points.T).tolist())


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"query": [0.5, 0.5]}, 409, "3 variables"),
        ({"terms": [[1, 1]]}, 409, "3 variables"),
        ({"terms": []}, 422, "terms"),
        ({"terms": [[1, 0, 1]]}, 422, "terms"),
        ({"query": [0.5, 0.5, 1.5]}, 422, "query.2"),
        ({"query": [0.5, 0.5, "1"]}, 422, "query.2"),
        ({"models": ["sraven-tiny"]}, 409, "choose a model of fuzzy logic"),
        ({"models": ["fuzzy-tiny", "sraven-tiny"]}, 409, "choose a model of fuzzy logic"),
        ({"models": ["nobody"]}, 404, "no model"),
        ({"seed": -1}, 422, "seed"),
    ],
)
def test_functions_that_cannot_be(client, changes, status, reason):
    assert reason in post(client, "predict", status, **changes)["error"]


def test_a_variable_that_there_is_not(client):
    assert "3 variables" in post(client, "slice", 409, variable=3)["error"]

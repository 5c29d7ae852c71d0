"""Decoding in short: numbers of one reading, one set of pairs and one layer."""

import itertools
from types import SimpleNamespace

import pytest

from hyla.lab.latents.summary import BestLayer, best_layers, findings


def decoding(scores: dict) -> list[dict]:
    """A table from (predictor, pairs, layer, split) to (accuracy, F1)."""
    return [
        {
            "predictor": predictor,
            "pairs": pairs,
            "layer": layer,
            "label": "rule",
            "split": split,
            "metric": metric,
            "class": name,
            "value": value if name == "all" else 1.0,
        }
        for (predictor, pairs, layer, split), values in scores.items()
        for (metric, value), name in itertools.product(
            zip(("accuracy", "f1"), values, strict=True), ("all", "addition")
        )
    ]


@pytest.mark.parametrize(
    ("metric", "best"),
    [
        ("accuracy", BestLayer("rule", "code", 1, 0.6, 0.2)),
        ("f1", BestLayer("rule", "code", 0, 0.4, 0.3)),
    ],
)
def test_both_scores_are_of_the_layer_that_is_best_by_the_papers(metric, best):
    table = decoding(
        {
            ("inputs", None, None, "ood"): (0.1, 0.05),
            ("code", "row", 0, "ood"): (0.4, 0.3),
            ("code", "row", 1, "ood"): (0.6, 0.2),
            ("code", "self", 1, "ood"): (0.9, 0.9),
            ("code", "row", 1, "ood_other_reading"): (0.8, 0.8),
            ("code", "row", 1, "test"): (1.0, 1.0),
        }
    )
    study = SimpleNamespace(unseen="ood", decoding_metric=metric)
    found = list(best_layers(table, study, "row"))  # type: ignore[arg-type]
    assert found == [BestLayer("rule", "inputs", None, 0.1, 0.05), best]


def swaps(**rates: tuple[float, float]) -> list[dict]:
    """A table from a code (underscores for spaces) to the rates of following and staying."""
    return [
        {
            "code": code.replace("_", " "),
            "pairs": pairs,
            "split": "ood",
            "first_layer": 0,
            "last_layer": 3,
            "donor_rate": follow,
            "stay_rate": stay,
        }
        for pairs, factor in (("row", 1.0), ("self", 0.0))
        for code, (follow, stay) in ((c, (f * factor, s * factor)) for c, (f, s) in rates.items())
    ]


def test_a_page_begins_with_what_was_found():
    study = SimpleNamespace(unseen="ood", decoding_metric="accuracy")
    tables = {
        "decoding": decoding(
            {
                ("inputs", None, None, "ood"): (0.7, 0.05),
                ("shuffled labels", "row", 1, "ood"): (0.1, 0.1),
                ("code", "row", 0, "ood"): (0.4, 0.3),
                ("code", "row", 1, "ood"): (0.6, 0.2),
                ("residual stream", None, 1, "ood"): (0.9, 0.9),
            }
        ),
        "swaps": swaps(donor=(0.2, 0.3), permuted_heads=(0.1, 0.1), same_operation=(0.0, 0.8)),
    }
    found = findings(tables, study)  # type: ignore[arg-type]
    assert len(found) == 5
    assert "layer 2 the rule of unseen compositions is read" in found[0]
    assert "0.60" in found[0]
    assert found[1] == "Of the controls inputs gives most, 0.70: the code adds nothing."
    assert "0.90" in found[2]
    assert "20% of the answers follow it, 10% with its heads permuted" in found[3]
    assert "same operation, 80% stay" in found[4]
    assert findings({}, study) == []  # type: ignore[arg-type]

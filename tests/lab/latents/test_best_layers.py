"""Decoding in short: numbers of one reading, one set of pairs and one layer."""

import itertools
from types import SimpleNamespace

import pytest

from hyla.lab.latents.summary import BestLayer, best_layers


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

"""Probes find what is there, and nothing where nothing is."""

import numpy as np
import pytest

from hyla.latents import decoding_table
from hyla.latents.measures.probe import fit_probe, probe_scores
from planted_task import PlantedStudy, trained_network, untrained_network


def scores(table, predictor: str, split: str = "unseen", metric: str = "accuracy"):
    rows = table[
        (table["predictor"] == predictor)
        & (table["split"] == split)
        & (table["metric"] == metric)
        & (table["class"] == "all")
    ]
    return rows["value"]


def test_code_and_controls():
    table = decoding_table(
        trained_network("hyla"),
        PlantedStudy(),
        seed=0,
        untrained=untrained_network("hyla", seed=1),
        pairs=["operand"],
        instances=512,
    )
    assert scores(table, "code").item() > 0.99
    assert scores(table, "residual stream").item() > 0.99  # the query names the operation
    for control in ("inputs", "target", "inputs and target"):
        assert scores(table, control).item() < 0.65, control
    assert len(scores(table, "untrained network")) == 1
    assert set(table["class"]) == {"all", "largest", "smallest"}


def test_shuffled_labels_cannot_be_decoded():
    """With two clusters of codes, a probe of random labels is right by chance, or wrong in all."""
    network, found = trained_network("linear"), []
    for seed in range(4):
        table = decoding_table(network, PlantedStudy(), seed=seed, pairs=["operand"], instances=128)
        assert scores(table, "code").item() > 0.99
        found.append(scores(table, "shuffled labels").item())
    assert min(found) < 0.65


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, f1_score

    random = np.random.default_rng(0)
    labels, predictions = random.integers(3, size=(2, 100))
    found = probe_scores(predictions, labels, ("a", "b", "c"))
    by_class = {(s["metric"], s["class"]): s["value"] for s in found}
    assert by_class["accuracy", "all"] == pytest.approx(accuracy_score(labels, predictions))
    each = np.array([f1_score(labels == i, predictions == i) for i in range(3)])
    assert [by_class["f1", name] for name in "abc"] == pytest.approx(each.tolist())
    assert by_class["f1", "all"] == pytest.approx(each.mean())


def test_several_labels_at_once():
    features = np.random.default_rng(0).normal(size=(400, 3))
    labels = (features > 0).astype(int)
    labels[:, 2] = 0  # a class that never occurs
    predict = fit_probe(features[:200], labels[:200])
    found = probe_scores(predict(features[200:]), labels[200:], ("a", "b", "c"))
    names = [score["class"] for score in found if score["metric"] == "f1"]
    assert names == ["a", "b", "all"]
    assert all(score["value"] > 0.9 for score in found)

"""Geometry of codes whose shape is known."""

from typing import Any

import numpy as np
import pytest

from hyla.latents import (
    CodeTable,
    cosine_similarities,
    distance_table,
    embedding_table,
    mean_codes,
    sample_codes,
)
from hyla.latents.measures.confidence import bootstrap_intervals, wilson_interval
from hyla.latents.measures.geometry import embed

CENTRES = {"a": [4.0, 0.0, 0.0], "b": [-4.0, 0.0, 0.0], "c": [0.0, 4.0, 0.0]}


def clusters(spread: float = 0.1, each: int = 30) -> CodeTable:
    random = np.random.default_rng(0)
    names = np.repeat(list(CENTRES), each)
    codes = np.array([CENTRES[name] for name in names]) + spread * random.normal(size=(90, 3))
    order = random.permutation(len(names))
    size = len(names)
    return CodeTable(
        codes=codes[order].astype(np.float32),
        columns={
            "layer": np.zeros(size, int),
            "kind": np.full(size, "self"),
            "instance": np.arange(size),
            "query": np.zeros(size, int),
            "key": np.zeros(size, int),
            "rule": names[order],
            "noise": random.permutation(names),
        },
    )


def test_means_and_similarities():
    table = clusters()
    means = mean_codes(table, "rule").pivot(index="rule", columns="coordinate", values="value")
    np.testing.assert_allclose(means.to_numpy(), list(CENTRES.values()), atol=0.1)
    rows = cosine_similarities(table, "rule").to_dict("records")
    found = {(row["first"], row["second"]): row["similarity"] for row in rows}
    assert found["a", "b"] == pytest.approx(-1, abs=0.01)
    assert found["a", "c"] == pytest.approx(0, abs=0.05)
    assert found["c", "c"] == pytest.approx(1)


def test_distances_tell_labels_that_matter():
    def ratio(label: str, spread: float = 0.1):
        table = distance_table(clusters(spread), label, resamples=200).set_index("statistic")
        return table.loc["ratio"]

    assert ratio("rule")["low"] > 10
    assert ratio("noise")["low"] < 1.05
    assert ratio("noise")["high"] > 0.95
    found = distance_table(clusters(0.0), "rule", resamples=10).set_index("statistic")
    assert found.loc["within", "value"] == pytest.approx(0, abs=1e-6)
    assert found.loc["between", "value"] == pytest.approx((8 + 2 * np.sqrt(32)) / 3)


def test_distances_need_something_to_compare():
    with pytest.raises(ValueError, match="several values of rule"):
        distance_table(clusters().where(rule="a"), "rule")


def test_codes_that_differ_by_rounding_lie_at_one_point():
    rounding = np.random.default_rng(0).normal(size=(50, 8)) * 1e-7
    assert (embed(np.ones((50, 8)) + rounding) == 0).all()
    assert (embed(np.zeros((50, 8))) == 0).all()


def test_embedding_keeps_clusters_together():
    points = embedding_table(clusters(), points=60)
    assert len(points) == 60
    means: Any = points.groupby("rule")[["x", "y"]].mean()
    centres = means.to_numpy()
    own = centres[[list(CENTRES).index(rule) for rule in points["rule"]]]
    within = np.linalg.norm(points[["x", "y"]].to_numpy() - own, axis=1).mean()
    between = np.linalg.norm(centres[0] - centres[1])
    assert between > 2 * within
    few = clusters().rows(np.arange(5))
    assert len(embedding_table(few)) == 5
    with pytest.raises(ValueError, match="at least 3 codes"):
        embedding_table(few.rows(np.arange(2)))


def test_samples_are_codes_of_the_table():
    table = clusters()
    samples = sample_codes(table, "rule", per_value=4)
    assert len(samples) == 3 * 4 * 3
    rows = samples.pivot(index=["rule", "sample"], columns="coordinate", values="value")
    for row in rows.to_numpy():
        assert np.isclose(table.codes, row).all(axis=1).any()


def test_intervals():
    assert wilson_interval(0, 50).low == pytest.approx(0, abs=1e-9)
    rate, low, high = wilson_interval(8, 10)
    assert (rate, low, high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert np.isnan(wilson_interval(0, 0).value)
    values = np.random.default_rng(0).normal(size=400)
    (mean,) = bootstrap_intervals(lambda times: [(times @ values) / times.sum()], 400)
    assert mean.value == pytest.approx(values.mean())
    assert mean.high - mean.low == pytest.approx(4 * values.std() / 20, rel=0.15)

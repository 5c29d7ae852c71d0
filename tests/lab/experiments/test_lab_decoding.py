"""Figures 2B and 2D judge both readings of fuzzy logic, and 2B against all its controls."""

import pytest

from hyla.lab.experiments.shared.latent_panels import READINGS
from hyla.lab.registry import load
from hyla.lab.verdicts import NOT, PARTLY, REPRODUCED, judge
from hyla.results.conditions import Conditions
from hyla.results.tables import Results

QUERY, CONTEXT = READINGS


def results(rows):
    return Results(conditions=Conditions(scale="paper"), cells=[], rows=rows, ceilings={})


def decoded(predictor, value, *, split=QUERY, layer: int | None = 1, seed=0):
    what = {"metric": "f1", "label": "terms", "class": "all", "attention": "hyla"}
    where = {"predictor": predictor, "split": split, "layer": layer, "seed": seed}
    return {**what, **where, "value": value}


@pytest.mark.parametrize(
    ("from_inputs", "status"), [(0.05, REPRODUCED), (0.25, PARTLY), (0.35, NOT)]
)
def test_a_code_is_judged_against_its_strongest_control(from_inputs, status):
    rows = [
        row
        for seed in (0, 1, 2)
        for row in (
            decoded("code", 0.1, layer=0, seed=seed),
            decoded("code", 0.3, seed=seed),
            decoded("shuffled labels", 0.0, seed=seed),
            decoded("untrained network", 0.05, seed=seed),
            decoded("inputs and target", from_inputs, layer=None, seed=seed),
            decoded("residual stream", 0.9, seed=seed),
        )
    ]
    (verdict,) = judge(load("fig2b").claims(results(rows)))
    assert verdict.status == status
    assert "layer 2: code 30.0" in verdict.number
    assert "residual stream 90.0" in verdict.number


def test_each_reading_has_its_own_verdicts():
    rows = [decoded(name, 0.2, split=s) for name in ("code", "shuffled labels") for s in READINGS]
    assert len(load("fig2b").claims(results(rows))) == 2
    rows = [
        {"what": "clusters", "attention": "hyla", "layer": 1, "seed": seed, "split": split}
        | {"label": label, "statistic": "ratio", "value": value}
        for seed in (0, 1, 2)
        for split, lead in ((QUERY, 0.5), (CONTEXT, -0.1))
        for label, value in (("function", 1.0 + lead), ("target", 1.0))
    ]
    query, context = judge(load("fig2d").claims(results(rows)))
    assert (query.status, context.status) == (REPRODUCED, NOT)
    assert READINGS[CONTEXT] in context.claim

"""Verdicts follow the numbers, and there is none without all of them."""

import math

import pytest

from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict, agrees, ahead, percent, share
from hyla.results.selection import Estimate


def estimate(mean: float, error: float = 0.01) -> Estimate:
    return Estimate(mean, error)


@pytest.mark.parametrize(
    ("lead", "status"),
    [(0.9, REPRODUCED), (0.61, PARTLY), (0.6, NOT), (0.3, NOT)],
)
def test_being_ahead_is_judged_by_the_error(lead: float, status: str):
    others = {"b": estimate(0.5), "c": estimate(0.6)}
    [verdict] = ahead("A is best.", ("A", estimate(lead)), others)
    assert verdict.status == status
    assert f"{100 * lead:.1f} ± 1.0" in verdict.number
    assert "60.0 ± 1.0 (c)" in verdict.number


def test_nothing_is_judged_that_was_not_measured():
    assert ahead("", ("A", None), {"b": estimate(0.5)}) == []
    assert ahead("", ("A", estimate(0.5)), {}) == []
    assert ahead("", ("A", estimate(0.5)), {"b": estimate(0.1), "c": None}) == []
    assert share("", [], "") == []


def test_single_seeds_have_no_error():
    alone = Estimate(0.5, math.nan)
    assert percent(alone) == "50.0"
    # By itself a comparison takes them as exact; the report, which sees the seeds, does not.
    [verdict] = ahead("", ("A", alone), {"b": Estimate(0.4, math.nan)})
    assert verdict.status == REPRODUCED
    assert verdict.without_errors().status == PARTLY
    [verdict] = ahead("", ("A", alone), {"b": Estimate(0.6, math.nan)})
    assert verdict.without_errors().status == NOT


@pytest.mark.parametrize(
    ("holds", "status"),
    [([True, True], REPRODUCED), ([True, False], PARTLY), ([False, True, False], NOT)],
)
def test_shares(holds: list[bool], status: str):
    assert share("", holds, "")[0].status == status


def test_agreement_is_within_two_standard_errors():
    assert agrees(Estimate(0.50, 0.03), Estimate(0.59, 0.04))
    assert not agrees(Estimate(0.50, 0.03), Estimate(0.61, 0.04))


def test_a_verdict_has_a_known_status():
    with pytest.raises(ValueError, match="status"):
        Verdict(claim="", status="perhaps", number="")

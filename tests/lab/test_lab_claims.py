"""Verdicts follow effects and their intervals, and all claims of a report are judged together."""

import math

import pytest

from hyla.lab.claims import BY_CONSTRUCTION, Claim, Size, ahead, constructed, percent
from hyla.lab.effects import alike, difference, effect
from hyla.lab.verdicts import (
    NO_VERDICT,
    NOT,
    PARTLY,
    REPRODUCED,
    TOO_FEW,
    UNDECIDED,
    Verdict,
    judge,
    unjudged,
)
from hyla.results.selection import Estimate, estimate_of


def estimate(mean: float, error: float = 0.01, count: int = 3) -> Estimate:
    return Estimate(mean, error, count)


# --- effects -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "t"), [(2, 4.303), (4, 2.776), (10, 2.228), (100, 1.984), (5000, 1.960)]
)
def test_intervals_are_students(freedom: int, t: float):
    """The 95 % points of any table of Student's t."""
    found = effect((1, estimate(0.0, 1.0, freedom + 1)))
    low, high = found.interval(0.05)
    assert (low, high) == pytest.approx((-t, t), abs=1e-3)
    at_the_end = effect((1, estimate(high, 1.0, freedom + 1)))
    assert at_the_end.probability == pytest.approx(0.05, rel=1e-6)


def test_two_groups_are_compared_by_welch():
    """By hand: 0.02 and 0.04 over three seeds each; the noisier group decides."""
    found = difference(estimate(0.9, 0.02), estimate(0.6, 0.04))
    assert found.value == pytest.approx(0.3)
    assert found.error == pytest.approx(math.sqrt(0.0004 + 0.0016))
    assert found.freedom == pytest.approx(0.002**2 / (0.0004**2 / 2 + 0.0016**2 / 2))
    exact = difference(estimate(0.9, 0.0), estimate(0.6, 0.04))
    assert exact.freedom == pytest.approx(2)


def test_what_is_alike_is_nearer_than_asked():
    assert alike(estimate(0.52), estimate(0.5), within=0.05).value == pytest.approx(0.03)
    assert alike(estimate(0.5), estimate(0.6), within=0.05).value == pytest.approx(-0.05)


def test_an_effect_without_any_error_is_certain_or_nothing():
    assert effect((1, estimate(0.1, 0.0))).probability == 0
    assert effect((1, estimate(0.0, 0.0))).probability == 1


# --- claims --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lead", "status"), [(0.9, REPRODUCED), (0.63, UNDECIDED), (0.6, UNDECIDED), (0.3, NOT)]
)
def test_being_ahead_is_judged_by_the_interval(lead: float, status: str):
    others = {"b": estimate(0.5), "c": estimate(0.6)}
    [verdict] = judge(ahead("A is best.", ("A", estimate(lead)), others))
    assert verdict.status == status
    assert f"{100 * lead:.1f} ± 1.0 against 60.0 ± 1.0 (c)" in verdict.number


def test_a_verdict_tells_effect_interval_number_and_rule():
    [verdict] = judge(ahead("", ("A", estimate(0.9)), {"b": estimate(0.6)}))
    assert verdict.measured == "A 90.0 ± 1.0 against 60.0 ± 1.0 (b)"
    assert verdict.basis == (
        "effect +30.0 points, 95.0% in [+26.1, +33.9]; n = 3 and 3; "
        "rule: certainly above 0, and 1.0 or more"
    )
    assert verdict.number == f"{verdict.measured}; {verdict.basis}"


@pytest.mark.parametrize(("size", "status"), [(0.05, REPRODUCED), (0.235, PARTLY)])
def test_the_size_is_judged_too(size: float, status: str):
    """What "slightly" boosts does not do so by 23.5 points, however certain they are."""
    slightly = Size(least=0.01, most=0.1)
    lead = ("A", estimate(0.5 + size, 0.002))
    [verdict] = judge(ahead("", lead, {"b": estimate(0.5, 0.002)}, slightly))
    assert verdict.status == status
    assert "and 1.0 to 10.0" in verdict.number


def test_the_least_certain_rival_decides():
    noisy = {"b": estimate(0.7, 0.001), "c": estimate(0.5, 0.2)}
    [verdict] = judge(ahead("", ("A", estimate(0.9, 0.001)), noisy))
    assert verdict.status == UNDECIDED
    assert "(c)" in verdict.number


@pytest.mark.parametrize(("count", "status"), [(1, TOO_FEW), (2, TOO_FEW), (3, REPRODUCED)])
def test_three_seeds_are_needed(count: int, status: str):
    error = math.nan if count == 1 else 0.001
    [verdict] = judge(ahead("", ("A", estimate(0.9)), {"b": estimate(0.5, error, count)}))
    assert verdict.status == status
    assert f"n = 3 and {count}" in verdict.number
    assert ("[" in verdict.number) == (status == REPRODUCED)


def test_nothing_is_claimed_that_was_not_measured():
    assert ahead("", ("A", None), {"b": estimate(0.5)}) == []
    assert ahead("", ("A", estimate(0.5)), {}) == []
    assert ahead("", ("A", estimate(0.5)), {"b": estimate(0.1), "c": None}) == []


def test_what_is_true_by_construction_stands_apart():
    lead = ahead("", ("A", estimate(0.64)), {"b": estimate(0.6)})
    alone = judge(lead)
    trivial = constructed("A quarter is held out.", "82 of 330")
    *found, verdict = judge([*lead, *[trivial] * 50])
    assert (verdict.status, verdict.number) == (BY_CONSTRUCTION, "82 of 330")
    assert found[:1] == alone  # it does not count among the claims that were looked at


def test_the_more_claims_are_looked_at_the_more_each_must_show():
    [clear] = ahead("", ("A", estimate(0.65)), {"b": estimate(0.6)})
    [nothing] = ahead("", ("A", estimate(0.6)), {"b": estimate(0.6)})
    assert judge([clear])[0].status == REPRODUCED
    assert judge([clear, *[nothing] * 60])[0].status == UNDECIDED
    # Among many that are clear, a false one more or less does not matter.
    assert {v.status for v in judge([clear] * 60)} == {REPRODUCED}


def test_what_diverged_shows_nothing():
    [verdict] = judge(ahead("", ("A", estimate(0.9)), {"b": estimate(math.nan, math.nan)}))
    assert verdict.status == NOT
    assert "diverged" in verdict.number


def test_smoke_scale_is_listed():
    [claim] = ahead("", ("A", estimate(0.9)), {"b": estimate(0.5)})
    assert unjudged(claim) == Verdict(claim="", status=NO_VERDICT, measured=claim.numbers)


def test_single_seeds_have_no_error():
    assert percent(estimate_of([0.5])) == "50.0"
    assert estimate_of([0.5]).count == 1


def test_a_verdict_has_a_known_status():
    with pytest.raises(ValueError, match="status"):
        Verdict(claim="", status="perhaps", measured="")


def test_a_claim_may_be_of_the_size_of_something_else():
    claim = Claim(text="", numbers="", effects=[effect((1, estimate(0.5)))], size=Size(least=0.8))
    assert not claim.as_large
    assert Claim(**{**vars(claim), "sized": 0.9}).as_large

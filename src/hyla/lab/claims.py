"""The paper's claims against what was measured: reproduced, partly, or not, and by what number.

A claim is judged only where everything it speaks of was measured, and without several seeds there
is no standard error by which it could be more than partly reproduced. A model that diverged was
measured: no claim is reproduced that compares it, on either side.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hyla.results.selection import Estimate

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"
STATUSES = (REPRODUCED, PARTLY, NOT)
NO_VERDICT = "smoke scale: not a verdict"
"""The status of claims where nothing was trained for long enough to judge any."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What our numbers say about a claim."""

    claim: str
    """The paper's, in its words where possible."""
    status: str
    """One of `STATUSES`, or `NO_VERDICT`."""
    number: str
    """The numbers that say so."""

    def __post_init__(self):
        if self.status not in (*STATUSES, NO_VERDICT):
            raise ValueError(f"status must be one of {STATUSES}, got {self.status!r}")

    def without_errors(self) -> "Verdict":
        """Return what is left of a verdict that rests on a single seed: at most partly."""
        status = PARTLY if self.status == REPRODUCED else self.status
        number = f"{self.number} (single seed, no standard error)"
        return dataclasses.replace(self, status=status, number=number)


def error_of(*estimates: Estimate) -> float:
    """Standard error of a sum or difference; a single seed adds none, and the report says so."""
    errors = (e.standard_error for e in estimates)
    return math.hypot(*(0.0 if math.isnan(error) else error for error in errors))


def by_error(lead: float, error: float) -> str:
    """Return the status of "this is larger": by more than the error, on average, or not.

    NaN, of what diverged, is not larger.
    """
    return REPRODUCED if lead > error else PARTLY if lead > 0 else NOT


def percent(value: Estimate) -> str:
    """A score as the paper prints it: in percent, with its standard error."""
    if math.isnan(value.mean):
        return "diverged"
    if math.isnan(value.standard_error):
        return f"{100 * value.mean:.1f}"
    return f"{100 * value.mean:.1f} ± {100 * value.standard_error:.1f}"


def standing(score: Estimate | None) -> float:
    """Return what to find the highest score by: first what diverged, since it decides."""
    if score is None:
        return -math.inf
    return math.inf if math.isnan(score.mean) else score.mean


def ahead(
    claim: str, leader: tuple[str, Estimate | None], others: Mapping[str, Estimate | None]
) -> list[Verdict]:
    """Judge "the leader does best": by more than the error, on average, or not.

    Empty if one of them was not measured.
    """
    name, lead = leader
    measured = {other: score for other, score in others.items() if score is not None}
    if lead is None or not measured or len(measured) < len(others):
        return []
    best = max(measured, key=lambda other: standing(measured[other]))
    margins = [lead.mean - score.mean - error_of(lead, score) for score in measured.values()]
    if all(margin > 0 for margin in margins):
        status = REPRODUCED
    elif lead.mean > measured[best].mean:
        status = PARTLY
    else:
        status = NOT
    number = f"{name} {percent(lead)} against {percent(measured[best])} ({best})"
    return [Verdict(claim=claim, status=status, number=number)]


def share(claim: str, holds: Sequence[bool], number: str, *, enough: float = 1.0) -> list[Verdict]:
    """Judge a claim about several cases by the share of them in which it holds."""
    if not holds:
        return []
    part = sum(holds) / len(holds)
    status = REPRODUCED if part >= enough else PARTLY if part >= 0.5 else NOT
    return [Verdict(claim=claim, status=status, number=number)]


def agrees(ours: Estimate, paper: Estimate) -> bool:
    """Whether two results differ by no more than two standard errors of their difference."""
    return abs(ours.mean - paper.mean) <= 2 * error_of(ours, paper)

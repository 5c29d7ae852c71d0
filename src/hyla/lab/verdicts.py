"""Verdicts one can quote: what our numbers say about claims, all of a report judged together.

A claim rests on an effect with a t interval. The more claims are looked at, the more of them look
true by chance: so the level of all intervals is the one at which, by Benjamini and Hochberg, at
most one in twenty of the effects that are called certain is expected to be none. (The intervals are
those that Benjamini and Yekutieli give for effects chosen so.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hyla.lab.claims import BY_CONSTRUCTION, CANNOT_BE_TOLD, Claim
from hyla.lab.effects import FEWEST_SEEDS, Effect

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"
UNDECIDED = "undecided"
STATUSES = (REPRODUCED, PARTLY, UNDECIDED, NOT)
"""What a claim that is judged can be."""
TOO_FEW = "too few seeds"
UNJUDGED = (TOO_FEW, CANNOT_BE_TOLD, BY_CONSTRUCTION)
"""Why a claim is not, and not counted among them."""
NO_VERDICT = "smoke scale: not a verdict"
"""The status of claims where nothing was trained for long enough to judge any."""
FALSE_ONES = 0.05
"""Share of false ones expected among the effects that are called certain."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What our numbers say about a claim."""

    claim: str
    status: str
    """One of `STATUSES` or `UNJUDGED`, or `NO_VERDICT`."""
    measured: str
    """Numbers, in a few words."""
    basis: str = ""
    """What says so: effect, interval, n and rule."""
    interval: tuple[float, float] | None = None
    """Of the effect; None where it is not judged."""

    def __post_init__(self):
        known = (*STATUSES, *UNJUDGED, NO_VERDICT)
        if self.status not in known:
            raise ValueError(f"status must be one of {known}, got {self.status!r}")

    @property
    def number(self) -> str:
        """Both in a line."""
        return f"{self.measured}; {self.basis}" if self.basis else self.measured


def judge(claims: Sequence[Claim]) -> list[Verdict]:
    """Judge all claims of a report together."""
    tested = [claim for claim in claims if _reason(claim) is None]
    level = _level([_probability(c) for c in tested if not math.isnan(c.weakest.value)])
    return [_verdict(claim, level) for claim in claims]


def unjudged(claim: Claim) -> Verdict:
    """Return a claim of smoke scale: listed, not judged."""
    return Verdict(claim=claim.text, status=NO_VERDICT, measured=claim.numbers)


def _reason(claim: Claim) -> str | None:
    """Return why a claim cannot be judged; None if it can."""
    if claim.untested:
        return claim.untested
    few = any(min(effect.counts) < FEWEST_SEEDS for effect in claim.effects)
    return TOO_FEW if few else None


def _probability(claim: Claim) -> float:
    """Return that of the weakest effect; below 0, of the worst of so many (Bonferroni)."""
    return min(1.0, claim.chances * claim.weakest.probability)


def _level(probabilities: Sequence[float]) -> float:
    """Return up to which probability an effect is called certain (Benjamini and Hochberg)."""
    share = FALSE_ONES / max(1, len(probabilities))
    enough = [i for i, p in enumerate(sorted(probabilities), start=1) if p <= i * share]
    return share * max(enough, default=1)


def _verdict(claim: Claim, level: float) -> Verdict:
    status = _reason(claim) or _status(claim, level)
    interval = None
    if status in STATUSES and not math.isnan(claim.weakest.value):
        level /= claim.chances
        interval = claim.weakest.interval(level)
    basis = "" if claim.untested else _basis(claim, claim.weakest, level, interval)
    return Verdict(
        claim=claim.text, status=status, measured=claim.numbers, basis=basis, interval=interval
    )


def _status(claim: Claim, level: float) -> str:
    effect = claim.weakest
    if math.isnan(effect.value):
        return NOT  # what diverged was measured, and shows nothing
    if _probability(claim) > level:
        return UNDECIDED
    if effect.value < 0:
        return NOT
    return REPRODUCED if claim.as_large else PARTLY


def _basis(claim: Claim, effect: Effect, level: float, interval: tuple[float, float] | None) -> str:
    unit = claim.unit
    if math.isnan(effect.value):
        return _count(effect)
    size = f"effect {unit.text(effect.value, sign=True)}{unit.name}"
    if interval is not None:
        low, high = (unit.text(end, sign=True) for end in interval)
        size += f", {1 - level:.1%} in [{low}, {high}]"
    return f"{size}; {_count(effect)}; rule: {claim.size.text(unit)}"


def _count(effect: Effect) -> str:
    """Say how many seeds there are in each group that the effect compares."""
    counts = effect.counts
    if len(counts) <= 2:
        return f"n = {' and '.join(f'{count:,}' for count in counts)}"
    fewest, most = min(counts), max(counts)
    each = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"n = {each} in each of {len(counts)}"

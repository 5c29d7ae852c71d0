"""What is claimed, and the effect that it rests on; `hyla.lab.verdicts` judges.

A claim is made only where everything it speaks of was measured. It says what must be above 0 (its
effects, all of them) and how large that must be.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hyla.lab.effects import Effect, difference
from hyla.lab.estimate import Needed
from hyla.results.selection import Estimate

BY_CONSTRUCTION = "by construction"
"""True of any results, of a count or a setting: no finding."""
CANNOT_BE_TOLD = "cannot be told"
"""What was measured would be the same if the claim were false."""


class Unit(NamedTuple):
    """How an effect is written."""

    factor: float
    name: str
    digits: int

    def text(self, value: float, *, sign: bool = False) -> str:
        """Return a number in this unit, without its name."""
        return f"{self.factor * value:{'+' if sign else ''}.{self.digits}f}"


POINTS = Unit(100, " points", 1)
PLAIN = Unit(1, "", 3)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large an effect must be to be the one that is claimed."""

    least: float
    most: float = math.inf
    of: str = ""
    """What has that size, if it is not the effect itself."""
    why: str = ""
    """What the effect is, or where the bounds come from, if the claim does not say so."""

    def text(self, unit: Unit) -> str:
        """Say it as a rule."""
        rule = "certainly above 0"
        if self.least > 0:
            upper = "or more" if self.most == math.inf else f"to {unit.text(self.most)}"
            rule += f", and {self.of + ' ' if self.of else ''}{unit.text(self.least)} {upper}"
        return rule + (f" ({self.why})" if self.why else "")


NOTICEABLE = Size(least=0.01)
"""Less than a point is no difference worth a sentence, however certain."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper or a question of ours, with what was measured."""

    text: str
    """In the paper's words where possible."""
    numbers: str
    """What was measured, in a few words."""
    effects: Sequence[Effect] = ()
    """What must be above 0: all of them."""
    size: Size = NOTICEABLE
    sized: float | None = None
    """What must be of that size; None: the smallest of the effects."""
    unit: Unit = POINTS
    untested: str = ""
    """`BY_CONSTRUCTION` or `CANNOT_BE_TOLD` where no effect could say anything."""
    needed: Needed | None = None
    """What its seeds lack to be judged, where a measurement trains the models itself."""

    @property
    def weakest(self) -> Effect:
        """The effect that is least clearly above 0: the claim is no stronger."""
        return min(self.effects, key=lambda effect: effect.clearness)

    @property
    def chances(self) -> int:
        """How many effects could have been below 0 by luck; above 0 all of them must be."""
        return 1 if self.weakest.value > 0 else len(self.effects)

    @property
    def as_large(self) -> bool:
        """Whether the effect is of the claimed size."""
        values = [effect.value for effect in self.effects]
        value = min(values) if self.sized is None else self.sized
        return self.size.least <= value <= self.size.most


def ahead(
    text: str,
    leader: tuple[str, Estimate | None],
    others: Mapping[str, Estimate | None],
    size: Size = NOTICEABLE,
) -> list[Claim]:
    """Claim that the leader is above each of the others; nothing if one was not measured."""
    name, lead = leader
    measured = {other: score for other, score in others.items() if score is not None}
    if lead is None or not measured or len(measured) < len(others):
        return []
    effects = {other: difference(lead, score) for other, score in measured.items()}
    rival = min(effects, key=lambda other: effects[other].clearness)
    numbers = f"{name} {percent(lead)} against {percent(measured[rival])} ({rival})"
    return [Claim(text=text, numbers=numbers, effects=list(effects.values()), size=size)]


def constructed(text: str, numbers: str) -> Claim:
    """Return a claim that no measurement could have contradicted."""
    return Claim(text=text, numbers=numbers, untested=BY_CONSTRUCTION)


def percent(value: Estimate | None) -> str:
    """A score as the paper prints it: in percent, with its standard error; without one, empty."""
    if value is None:
        return ""
    if math.isnan(value.mean):
        return "diverged"
    if math.isnan(value.standard_error):
        return f"{100 * value.mean:.1f}"
    return f"{100 * value.mean:.1f} ± {100 * value.standard_error:.1f}"

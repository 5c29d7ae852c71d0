"""Populations that train as one: few models leave a GPU idle, whatever their attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hyla.lab.estimate import seconds_for
from hyla.training import TrainConfig, company_key

USUAL_POPULATION = 24
"""Most of the lab's models that train together where nobody measured how many are fastest."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Members of one method that train in one run."""

    config: TrainConfig
    """With the members of this part alone, or, if trained, those of them that are needed."""
    state: str = "new"
    """finished, new, resumable at step n, or to be scored on what was not asked for before."""
    step: int = 0
    """Step of the checkpoint that training continues from."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.state == "finished"

    @property
    def trained(self) -> bool:
        """Whether no steps are left, though there may be splits to be scored on."""
        return self.finished or self.step == self.config.steps


AnyPart = TypeVar("AnyPart", bound=Part)
PopulationSize = Callable[[TrainConfig], int]
"""How many of the members of a config train together, at most."""


def companies(parts: Sequence[AnyPart], together: PopulationSize) -> list[list[AnyPart]]:
    """Put the parts that can train together into companies, in the order of the parts.

    A company has as many models at most as each of its populations may have.
    """
    found: list[list[AnyPart]] = []
    joined: dict[tuple[str, str], list[AnyPart]] = {}
    for part in parts:
        kind = None if part.trained else company_key(part.config)
        if kind is None:
            found.append([part])
            continue
        own = joined.setdefault((kind, part.state), [])
        if models_of([*own, part]) > min(together(each.config) for each in [*own, part]):
            own = joined[kind, part.state] = []
        if not own:
            found.append(own)
        own.append(part)
    return found


def seconds_of(company: Sequence[Part], device: str) -> list[float]:
    """Return the estimated seconds that each part of a company still takes on a device."""
    among = models_of(company)
    return [
        seconds_for(part.config, device=device, done=part.step, among=among) for part in company
    ]


def models_of(parts: Sequence[Part]) -> int:
    """Return how many models the parts have."""
    return sum(len(part.config.members) for part in parts)

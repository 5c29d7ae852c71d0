"""What is not measured yet would take, at today's speed: minutes of one GPU."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hyla.lab.companies import USUAL_POPULATION, Part, companies, models_of, seconds_of
from hyla.lab.effects import FEWEST_SEEDS
from hyla.lab.estimate import Needed
from hyla.lab.experiment import Experiment
from hyla.lab.methods import Effort, methods_of
from hyla.results.conditions import Conditions
from hyla.results.runs import Row
from hyla.results.selection import compared_hyperparameters
from hyla.results.tables import Tables, stored_conditions
from hyla.training.identity import method_key

_AS_PRINTED = tuple(Conditions(scale="paper", precision=p) for p in ("tf32", "float32"))
"""Conditions whose models need no further training; the first would be trained in."""
_EFFORT = Effort(seeds=FEWEST_SEEDS, search=False)


class Costs:
    """What the models that a store does not have would cost."""

    def __init__(self, store: Path):
        rows: dict[str, list[Row]] = {}
        for conditions in stored_conditions(store):
            for row in Tables(store, conditions).models():
                rows.setdefault(row["method"], []).append(row)
        self._seeds = {method: _seeds(own) for method, own in rows.items()}

    def minutes(self, experiment: Experiment) -> float | None:
        """Return those of its models at paper scale; None where no estimate is known."""
        beside = experiment.measurement and experiment.measurement.gpu_seconds
        if beside is not None:
            return beside(_AS_PRINTED[0], None) / 60
        if not methods_of(experiment, _AS_PRINTED[0], _EFFORT):
            return None
        return _needed(self._left(experiment, _AS_PRINTED)).seconds / 60

    def more_seeds(self, experiment: Experiment, conditions: Conditions) -> Needed | None:
        """Return what methods that have models there lack; None if nothing is trained for it."""
        if not methods_of(experiment, conditions, _EFFORT):
            return None
        return _needed(self._left(experiment, (conditions,), begun=True))

    def _left(
        self, experiment: Experiment, alike: Sequence[Conditions], *, begun: bool = False
    ) -> list[Part]:
        """Return the models that none of the conditions has, to be trained in the first of them.

        With `begun`, only those of methods that have a model there.
        """
        left = []
        by_conditions = [methods_of(experiment, each, _EFFORT) for each in alike]
        for same in zip(*by_conditions, strict=True):
            here = max((self._seeds.get(method_key(m.config), set()) for m in same), key=len)
            config = same[0].config
            members = tuple(member for member in config.members if member.seed not in here)
            if members and (here or not begun):
                left.append(Part(config=dataclasses.replace(config, members=members)))
        return left


def _seeds(models: Sequence[Row]) -> set[int]:
    """Return the seeds of a method's models at the hyper-parameters of which there are most."""
    return {row["seed"] for row in next(iter(compared_hyperparameters(models).values()))}


def _needed(parts: Sequence[Part]) -> Needed:
    """Estimate their training on a GPU, as `hyla reproduce` does."""
    together = companies(parts, lambda config: USUAL_POPULATION)
    seconds = sum(sum(seconds_of(company, "cuda")) for company in together)
    return Needed(models=models_of(parts), seconds=seconds)


def in_minutes(minutes: float | None) -> str:
    """Say a cost in words."""
    return "no estimate" if minutes is None else f"about {minutes:,.0f} GPU minutes"

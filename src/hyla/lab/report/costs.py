"""What is not measured yet would take, at today's speed: minutes of one GPU."""

import dataclasses
from pathlib import Path

from hyla.lab.effects import FEWEST_SEEDS
from hyla.lab.estimate import seconds_for
from hyla.lab.experiment import Experiment
from hyla.lab.methods import Effort, methods_of
from hyla.results.conditions import Conditions
from hyla.results.tables import Tables
from hyla.training.identity import method_key

_AS_PRINTED = tuple(Conditions(scale="paper", precision=p) for p in ("tf32", "float32"))
"""Conditions whose models need no further training; the first would be trained in."""
_EFFORT = Effort(seeds=FEWEST_SEEDS, search=False)


class Costs:
    """What the models that a store does not have would cost."""

    def __init__(self, store: Path):
        self._seeds: dict[str, set[int]] = {}
        for conditions in _AS_PRINTED:
            for row in Tables(store, conditions).models():
                self._seeds.setdefault(row["method"], set()).add(row["seed"])

    def minutes(self, experiment: Experiment) -> float | None:
        """Return those of its models at paper scale; None where no estimate is known."""
        beside = experiment.measurement and experiment.measurement.gpu_seconds
        if beside is not None:
            return beside(_AS_PRINTED[0], None) / 60
        by_conditions = [methods_of(experiment, each, _EFFORT) for each in _AS_PRINTED]
        seconds = 0.0
        for same in zip(*by_conditions, strict=True):
            here = max((self._seeds.get(method_key(m.config), set()) for m in same), key=len)
            left = [member for member in same[0].config.members if member.seed not in here]
            if left:
                config = dataclasses.replace(same[0].config, members=tuple(left))
                seconds += seconds_for(config, device="cuda")
        return seconds / 60 if by_conditions[0] else None


def in_minutes(minutes: float | None) -> str:
    """Say a cost in words."""
    return "no estimate" if minutes is None else f"about {minutes:,.0f} GPU minutes"

"""Choosing hyper-parameters on the validation split, never on the OOD set, and reporting them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hyla.results.runs import Row
from hyla.training import Member

HYPERPARAMETERS = tuple(field.name for field in fields(Member) if field.name != "seed")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error; NaN for a single seed."""

    mean: float
    standard_error: float
    count: int = 1
    """Over how many seeds, or instances where nothing was trained."""

    def __str__(self) -> str:
        if math.isnan(self.standard_error):
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ± {self.standard_error:.3f}"


def validation_metric(models: Sequence[Mapping[str, Any]], headline: str) -> str:
    """Return the metric to choose by: on `validation`, or on `test` if not all have that."""
    name = f"validation/{headline}"
    return name if all(has_metric(model, name) for model in models) else f"test/{headline}"


def has_metric(model: Mapping[str, Any], name: str) -> bool:
    """Whether it was measured of a model; in a table, others may have it and this one not."""
    return model.get(name) is not None


def best_hyperparameters(rows: Sequence[Row], headline: str) -> tuple[Any, ...]:
    """Return the hyper-parameters with the best mean over seeds on the validation split.

    A choice with which any seed diverged ranks below all others.
    """
    metric = validation_metric(rows, headline)
    choices = compared_hyperparameters(rows)

    def rank(choice: tuple[Any, ...]) -> tuple[bool, float]:
        seeds = choices[choice]
        score = statistics.fmean(row[metric] for row in seeds)
        stable = not any(row["diverged"] for row in seeds)
        return stable, -math.inf if math.isnan(score) else score

    return max(choices, key=rank)


def compared_hyperparameters(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Return the models by their hyper-parameters, of those that have as many seeds as any.

    A mean over fewer seeds is no match: where runs sit on plateaus, one lucky seed would win.
    """
    choices: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        choices.setdefault(hyperparameters_of(row), []).append(row)
    most = max(map(len, choices.values()))
    return {choice: models for choice, models in choices.items() if len(models) == most}


def hyperparameters_of(row: Row) -> tuple[Any, ...]:
    """Return the row's hyper-parameters: what distinguishes members besides the seed."""
    return tuple(row[name] for name in HYPERPARAMETERS)


def estimate(rows: Sequence[Row], metric: str) -> Estimate:
    """Return mean and standard error of a metric over the rows."""
    return estimate_of([row[metric] for row in rows])


def estimate_of(values: Sequence[float]) -> Estimate:
    """Return mean and standard error of one value for each seed."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2 or not all(map(math.isfinite, values)):
        return Estimate(mean, math.nan, count)
    return Estimate(mean, statistics.stdev(values) / math.sqrt(count), count)

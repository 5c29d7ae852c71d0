"""What a run logged along its training, in as many points as a figure can show."""

import math
import statistics
from pathlib import Path
from typing import Any

from hyla.explorer.web import schemas
from hyla.training.run.errors import RunDirectoryError
from hyla.training.run.reading import iterate_metrics

MOST_POINTS = 2000
# A log of 1,000 models that were trained for long; more would keep everybody waiting.
MOST_BYTES, MOST_RECORDS = 64 << 20, 200_000


class _Thinned:
    """Points of one metric, of which every second is dropped whenever there are too many."""

    def __init__(self):
        self.points: list[tuple[int, list[Any]]] = []
        self._every = 1
        self._seen = 0

    def add(self, step: int, values: list[Any]) -> None:
        if self._seen % self._every == 0:
            self.points.append((step, values))
            if len(self.points) > MOST_POINTS:
                del self.points[1::2]
                self._every *= 2
        self._seen += 1


def series_of(run: Path) -> dict[str, schemas.Series]:
    """Return each metric along the steps at which it was logged.

    Raises:
        RunDirectoryError: the log cannot be read, or is too long to be drawn.
    """
    logged: dict[str, _Thinned] = {}
    for number, record in enumerate(iterate_metrics(run, at_most=MOST_BYTES)):
        if number == MOST_RECORDS:
            raise RunDirectoryError(
                f"{run / 'metrics.jsonl'} holds more than {MOST_RECORDS:,} records, the most that "
                "are drawn here"
            )
        for name, values in record.items():
            if isinstance(values, list):
                logged.setdefault(name, _Thinned()).add(record["step"], values)
    return {name: _series(thinned.points) for name, thinned in logged.items()}


def _series(points: list[tuple[int, list[Any]]]) -> schemas.Series:
    mean, low, high = zip(*(statistics_of(values) for _, values in points), strict=True)
    return schemas.Series(
        steps=[step for step, _ in points], mean=list(mean), low=list(low), high=list(high)
    )


def statistics_of(values: list[Any]) -> tuple[float | None, float | None, float | None]:
    """Return mean, least and greatest over the members; None if one is no finite number."""
    if not values or not all(isinstance(x, int | float) and math.isfinite(x) for x in values):
        return None, None, None
    return statistics.fmean(values), float(min(values)), float(max(values))

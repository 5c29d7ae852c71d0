"""The runs of a store, to be compared; nothing outside of its folder is ever read."""

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hyla.explorer import schemas
from hyla.explorer.refusals import NotThereError, RefusedError
from hyla.lab.store import StoredRun, origin_of, read_run
from hyla.training.run_directory import RunDirectoryError, read_metrics

_MOST_POINTS = 2000
# What reading files raises that hold something else than a run does.
_DAMAGED = (LookupError, TypeError, AttributeError, ValueError)


class RunStore:
    """The run directories in a folder and in the folders of that (`runs/`, `runs/lab/`).

    A run's id is its path in the store. Only ids that a listing of the store holds are looked at,
    so a request cannot name anything else; links that lead out of the store are not followed.
    """

    def __init__(self, root: Path):
        self._root = root

    def named(self, name: str) -> list[Path]:
        """Return the runs of this id or folder name; several, if folders of the store share it."""
        return [path for id, path in sorted(self._paths()) if name in (id, path.name)]

    def names(self) -> list[str]:
        """Return the folder names of all runs."""
        return sorted({path.name for _, path in self._paths()})

    def paths(self) -> list[Path]:
        """Return the folders of all runs, by id."""
        return [path for _, path in sorted(self._paths())]

    def has_runs(self) -> bool:
        """Whether there is anything to compare."""
        return next(self._paths(), None) is not None

    def runs(self) -> schemas.Runs:
        """Return all runs by id, and what could not be read."""
        found, skipped = [], []
        for id, path in sorted(self._paths()):
            try:
                found.append(_summary(id, read_run(path)))
            except (RunDirectoryError, *_DAMAGED) as error:
                skipped.append(schemas.SkippedRun(id=id, reason=_reason(error)))
        return schemas.Runs(runs=found, skipped=skipped)

    def curves(self, id: str) -> schemas.Curves:
        """Return everything that a run logged."""
        path = dict(self._paths()).get(id)
        if path is None:
            raise NotThereError(f"the store has no run {id!r}: see /api/runs")
        try:
            config = read_run(path).config
            return schemas.Curves(run=id, series=_series(read_metrics(path)), config=config)
        except (RunDirectoryError, *_DAMAGED) as error:
            raise RefusedError(f"{id} cannot be read: {_reason(error)}") from error

    def _paths(self) -> Iterator[tuple[str, Path]]:
        root = self._root.resolve()
        for pattern in ("*/config.json", "*/*/config.json"):
            for file in self._root.glob(pattern):
                if _lies_in(root, file.parent):
                    yield file.parent.relative_to(self._root).as_posix(), file.parent


def _lies_in(root: Path, folder: Path) -> bool:
    """Whether a folder and all files in it are really there, whatever links say."""
    try:
        return all(part.resolve().is_relative_to(root) for part in (folder, *folder.iterdir()))
    except (OSError, RuntimeError):  # not to be looked into, or a circle of links
        return False


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RunDirectoryError) else "it is damaged"


def _summary(id: str, run: StoredRun) -> schemas.Run:
    model = run.config["model"]
    return schemas.Run(
        id=id,
        name=run.path.name,
        task=run.config.get("task_name", "?"),
        attention=str(model["attention"]),
        members=_members(run),
        finished=run.summary is not None,
        device=origin_of(run)["device"],
        step=_step(run),
        steps=run.config["steps"],
        metrics=_final(run),
    )


def _members(run: StoredRun) -> int:
    """Count the models; a language run is one."""
    return len(run.config.get("members", [None]))


def _step(run: StoredRun) -> int:
    """Return how far it has come: to its end, or to its newest record."""
    if run.summary is not None:
        return run.config["steps"]
    return max((record["step"] for record in read_metrics(run.path)), default=0)


def _final(run: StoredRun) -> dict[str, float]:
    """Return the final metrics, or the newest of a run that is not finished; means over members."""
    if run.summary is not None:
        members = [member["metrics"] for member in run.summary["members"]]
        found = {name: [member.get(name) for member in members] for name in members[0]}
    else:
        found = {}
        for record in read_metrics(run.path):
            found |= {name: values for name, values in record.items() if isinstance(values, list)}
    means = {name: _statistics(values)[0] for name, values in found.items()}
    return {name: mean for name, mean in means.items() if mean is not None}


def _series(records: list[dict[str, Any]]) -> dict[str, schemas.Series]:
    """Return each metric along the steps at which it was logged."""
    logged: dict[str, list[tuple[int, list[Any]]]] = {}
    for record in records:
        for name, values in record.items():
            if isinstance(values, list):
                logged.setdefault(name, []).append((record["step"], values))
    series = {}
    for name, points in logged.items():
        points = points[:: -(-len(points) // _MOST_POINTS)]
        mean, low, high = zip(*(_statistics(values) for _, values in points), strict=True)
        series[name] = schemas.Series(
            steps=[step for step, _ in points], mean=list(mean), low=list(low), high=list(high)
        )
    return series


def _statistics(values: list[Any]) -> tuple[float | None, float | None, float | None]:
    """Return mean, least and greatest over the members; None if one is no finite number."""
    if not values or not all(isinstance(x, int | float) and math.isfinite(x) for x in values):
        return None, None, None
    return statistics.fmean(values), float(min(values)), float(max(values))

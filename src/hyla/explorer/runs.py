"""The runs of a folder, to be compared; nothing outside of it is ever read.

Such a folder may hold anything: whatever it is, it costs little, and takes no other down.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from hyla.explorer.curves import series_of, statistics_of
from hyla.explorer.memo import Memo
from hyla.explorer.web import schemas
from hyla.explorer.web.refusals import NotThereError, RefusedError
from hyla.results.folders import run_folders
from hyla.results.runs import StoredRun, origin_of, read_run
from hyla.training.run.errors import RunDirectoryError
from hyla.training.run.reading import newest_metrics

_READ = ("config.json", "finished.json", "provenance.json", "metrics.jsonl")
# Of a run that is not finished, the newest metrics stand at the end of its log.
_NEWEST_BYTES = 1 << 20
_REMEMBERED = 2000
# What reading files raises that hold something else than a run does.
_DAMAGED = (LookupError, TypeError, AttributeError, ValueError, RecursionError)
_Answer = TypeVar("_Answer", bound=schemas.Answer)


class RunFolder:
    """The run directories in a folder and in the folders of that (`runs/`, `runs/lab/`).

    A run's id is its path in the folder. Only ids that a listing holds are looked at,
    so a request cannot name anything else; links that lead out of it are not followed.
    """

    def __init__(self, root: Path):
        self._root = root
        # By what the files look like from outside: a run is read again once that has changed.
        self._listed: Memo[schemas.Run | schemas.SkippedRun] = Memo(size=_REMEMBERED)
        self._curves: Memo[schemas.Curves | str] = Memo(size=20)

    def runs(self) -> schemas.Runs:
        """Return all runs by id, and what could not be read."""
        listed = [
            self._listed.get((id, _looks(path)), lambda id=id, path=path: _listing(id, path))
            for id, path in sorted(self._paths())
        ]
        return schemas.Runs(
            runs=[one for one in listed if isinstance(one, schemas.Run)],
            skipped=[one for one in listed if isinstance(one, schemas.SkippedRun)],
        )

    def curves(self, id: str) -> schemas.Curves:
        """Return everything that a run logged."""
        path = dict(self._paths()).get(id)
        if path is None:
            raise NotThereError(f"there is no run {id!r}: see /api/runs")

        found = self._curves.get((id, _looks(path)), lambda: _drawing(id, path))
        if isinstance(found, str):
            raise RefusedError(f"{id} cannot be read: {found}")
        return found

    def _paths(self) -> Iterator[tuple[str, Path]]:
        for folder in run_folders(self._root):
            yield _readable(folder.relative_to(self._root).as_posix()), folder


def _looks(folder: Path) -> tuple[tuple[int, ...] | None, ...]:
    """Return what changes when the files of a run that are read here change."""

    def look(file: Path) -> tuple[int, ...] | None:
        try:
            status = file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    return tuple(look(folder / name) for name in _READ)


def _listing(id: str, path: Path) -> schemas.Run | schemas.SkippedRun:
    try:
        return _sendable(_summary(id, read_run(path)))
    except (RunDirectoryError, *_DAMAGED) as error:
        return schemas.SkippedRun(id=id, reason=_reason(error))


def _drawing(id: str, path: Path) -> schemas.Curves | str:
    """Return the curves of a run, or why there are none."""
    try:
        config = read_run(path).config
        return _sendable(schemas.Curves(run=id, series=series_of(path), config=config))
    except (RunDirectoryError, *_DAMAGED) as error:
        return _reason(error)


def _sendable(answer: _Answer) -> _Answer:
    """Return an answer made of files; a ValueError if it is none that JSON in UTF-8 can say."""
    json.dumps(answer.model_dump(mode="json"), ensure_ascii=False, allow_nan=False).encode()
    return answer


def _readable(text: str) -> str:
    """Escape what a name of bytes that are not UTF-8 has in place of them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _reason(error: Exception) -> str:
    return _readable(str(error)) if isinstance(error, RunDirectoryError) else "it is damaged"


def _summary(id: str, run: StoredRun) -> schemas.Run:
    model = run.config["model"]
    newest = [] if run.summary else newest_metrics(run.path, _NEWEST_BYTES)
    return schemas.Run(
        id=id,
        name=_readable(run.path.name),
        task=run.config.get("task_name", "?"),
        attention=str(model["attention"]),
        members=len(run.config.get("members", [None])),  # a language run is one
        finished=run.summary is not None,
        device=origin_of(run)["device"],
        step=_step(run, newest),
        steps=run.config["steps"],
        metrics=_final(run, newest),
    )


def _step(run: StoredRun, newest: list[dict[str, Any]]) -> int:
    """Return how far it has come: to its end, or to its newest record."""
    if run.summary is not None:
        return run.config["steps"]
    return max((record["step"] for record in newest), default=0)


def _final(run: StoredRun, newest: list[dict[str, Any]]) -> dict[str, float]:
    """Return the final metrics, or the newest of a run that is not finished; means over members."""
    if run.summary is not None:
        members = [member["metrics"] for member in run.summary["members"]]
        found = {name: [member.get(name) for member in members] for name in members[0]}
    else:
        found = {}
        for record in newest:
            found |= {name: values for name, values in record.items() if isinstance(values, list)}
    means = {name: statistics_of(values)[0] for name, values in found.items()}
    return {name: mean for name, mean in means.items() if mean is not None}

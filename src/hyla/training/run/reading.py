"""What a run directory says, read without holding it: safe while the run is being trained."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hyla._files import open_regular, read_regular
from hyla.training.identity import fingerprint
from hyla.training.run.errors import NoRunError, RunDirectoryError, explained
from hyla.training.run.records import parse_records, restore_nonfinite

BRANCH_SCALES = "branch_scales"
_LARGEST_JSON = 16 << 20  # a summary of 1,000 models is a fiftieth of that


def directory_of(root: Path, name: str, config: Mapping[str, Any]) -> Path:
    """Return where the run with this config lives, whether or not it exists."""
    return Path(root) / f"{name}-{fingerprint(config)[:12]}"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the complete metrics of the run directory `path`, without locking it."""
    return list(iterate_metrics(path))


def iterate_metrics(path: Path, *, at_most: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the same one at a time; of a file that is larger than `at_most` bytes, none."""
    return (r for r in _iterate_records(path, at_most) if BRANCH_SCALES not in r)


def read_branch_scales(path: Path) -> dict[str, Any] | None:
    """Return the scales of the branches at the start of a run; None if it has not logged any."""
    return next((r[BRANCH_SCALES] for r in _iterate_records(path) if BRANCH_SCALES in r), None)


def _iterate_records(path: Path, at_most: int | None = None) -> Iterator[dict[str, Any]]:
    file = path / "metrics.jsonl"
    with explained(file), open_regular(file, at_most=at_most) as lines:
        for _, record in parse_records(file, lines):
            yield restore_nonfinite(record)


def newest_metrics(path: Path, most_bytes: int) -> list[dict[str, Any]]:
    """Return the records in the last `most_bytes` of those of the run directory `path`."""
    file = path / "metrics.jsonl"
    with explained(file), open_regular(file) as lines:
        start = max(0, os.fstat(lines.fileno()).st_size - most_bytes)
        if start:
            lines.seek(start - 1)
            lines.readline(most_bytes + 1)  # what is left of the record in which these bytes begin
        records = (restore_nonfinite(record) for _, record in parse_records(file, lines))
        return [record for record in records if BRANCH_SCALES not in record]


def read_config(path: Path) -> dict[str, Any]:
    """Return the resolved config in the run directory `path`; a NoRunError without one."""
    tree = read_json(path / "config.json", missing=None, advice="move the run directory away")
    if not isinstance(tree, dict):
        reason = "it holds no config.json" if path.exists() else "it does not exist"
        raise NoRunError(f"{path} is not a run directory: {reason}")
    return tree


def read_finished(path: Path) -> dict[str, Any] | None:
    """Return the final summary of the run directory `path`; None if it is not complete."""
    file = path / "finished.json"
    advice = (
        "delete it, and the run is scored again from its last checkpoint; if that has lost the "
        "optimiser's state, as in a lab, move the directory away"
    )
    summary = read_json(file, missing=None, advice=advice)
    try:
        return None if summary is None else restore_nonfinite(summary)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunDirectoryError(f"{file} is damaged: {advice}.") from error


def read_provenance(path: Path) -> list[dict[str, Any]]:
    """Return one entry per start of the run in the directory `path`."""
    file = path / "provenance.json"
    advice = "it only says where the run was trained; delete it to continue without"
    starts = read_json(file, missing=[], advice=advice)
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise RunDirectoryError(f"{file} is damaged: {advice}.")
    return starts


def read_json(path: Path, *, missing: Any, advice: str) -> Any:
    """Return what the file holds, or `missing` without it; `advice` is for one that is damaged."""
    try:
        with explained(path):
            if not path.exists():
                return missing
            return json.loads(read_regular(path, at_most=_LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}): {advice}.") from error

"""Where rows come from, said once for all of them.

Thousands of rows share a device, versions and a commit. In a table they name their origin, and
beside the tables lies what it is, a file for each::

    geometry-sraven.csv     origin,attention,seed,...
                            o1f0c9a52,hyla,0,...
    origins/o1f0c9a52.csv   origin,device,hyla,torch,cuda,python,git_commit
                            o1f0c9a52,NVIDIA H200,...

The name follows from the contents: whoever writes such a file writes the same. So processes need
no lock, and folders of several machines join by being copied together.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hyla import __version__
from hyla._environment import environment, git_commit
from hyla.results.csv_table import read_csv, write_csv
from hyla.results.runs import ORIGIN, Row
from hyla.training.identity import fingerprint

_FOLDER = "origins"


class MissingOriginError(Exception):
    """A table came without its origins; the message says which one to bring."""


def write_with_origins(rows: Sequence[Row], path: Path) -> None:
    """Write a table whose rows name their origins, and the origins, before it, beside it."""
    origins: dict[str, Row] = {}
    named = []
    for row in rows:
        origin = {name: row.get(name) for name in ORIGIN}
        rest = {name: value for name, value in row.items() if name not in ORIGIN}
        if any(origin.values()):
            name = _name(origin)
            origins[name] = {"origin": name, **origin}
            rest = {"origin": name, **rest}
        named.append(rest)
    for name, origin in origins.items():
        if not (file := _file(path, name)).exists():
            write_csv([origin], file)
    write_csv(named, path)


def read_with_origins(path: Path) -> list[Row]:
    """Return a table's rows with what their origins say; older tables say it in every row.

    Raises:
        MissingOriginError: it names an origin that is not there.
    """
    rows = read_csv(path)
    if not rows or "origin" not in rows[0]:
        return rows
    names = {row["origin"] for row in rows} - {None}
    origins = {name: _read_origin(path, name) for name in names}
    whole = []
    for row in rows:
        origin = origins.get(row.pop("origin"), {})  # a table put together by hand may have both
        whole.append({**dict.fromkeys(ORIGIN), **row, **origin})
    return whole


def put_rows(rows: Sequence[Row], path: Path, *, of: Mapping[str, Any]) -> None:
    """Put rows into a table, in the place of those that have the values of `of`; others stay."""
    kept = [row for row in read_with_origins(path) if not has_values(row, of)]
    write_with_origins([*kept, *rows], path)


def has_values(row: Row, of: Mapping[str, Any]) -> bool:
    """Whether a row has the values of `of`, as text: a name may read as a number."""
    return all(str(row.get(name)) == str(value) for name, value in of.items())


def measured_with(device: torch.device) -> Row:
    """Return the origin of what is measured now."""
    return {**environment(device), "hyla": __version__, "git_commit": git_commit()}


def is_dirty(commit: str | None) -> bool:
    """Whether a commit does not say what was computed: the tree had changes of its own."""
    return commit is not None and "-dirty" in commit


def _name(origin: Row) -> str:
    # As text: read from an older table, CUDA 13.0 is a number.
    known = {name: str(value) for name, value in origin.items() if value is not None}
    return f"o{fingerprint(known)[:8]}"  # hexadecimal digits alone may read as a number


def _read_origin(table: Path, name: str) -> Row:
    file = _file(table, name)
    try:
        [row] = read_csv(file)
    except ValueError as error:
        raise MissingOriginError(
            f"{table} has rows of origin {name}, but {file} is not there: "
            f"copy the folder {_FOLDER!r} from where the table was made, or remove the table and "
            "collect it again"
        ) from error
    return {column: row.get(column) for column in ORIGIN}


def _file(table: Path, name: str) -> Path:
    return table.parent / _FOLDER / f"{name}.csv"

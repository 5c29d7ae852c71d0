"""A folder to which analyses add what they found: what others found stays.

The tables hold the rows of all subjects (a member of a run, a pretrained model), and analysis.json
says what was computed from what. Whoever computes a figure of a subject again replaces it.
"""

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hyla import __version__
from hyla._environment import environment, git_commit
from hyla._files import write_atomically
from hyla.latents._optional import required

if TYPE_CHECKING:
    import pandas

ACCOUNT = "analysis.json"


def add_rows(table: "pandas.DataFrame", path: Path, subject: Mapping[str, Any]) -> None:
    """Put rows into a .csv or .parquet file, in the place of those that their subject had there.

    `subject` are the columns that tell its rows from those of others, with their values.
    """
    pandas = required("pandas")
    as_text = path.suffix == ".csv"
    if as_text:
        # Compared and kept as text: the rows of others do not change by a digit.
        table = _read_text(StringIO(table.to_csv(index=False, float_format="%.6g")))
        subject = {name: str(value) for name, value in subject.items()}
    if path.is_file():
        before = _read_text(path) if as_text else pandas.read_parquet(path)
        table = pandas.concat([before[~_is_of(subject, before)], table], ignore_index=True)
    content = table.to_csv(index=False).encode() if as_text else table.to_parquet(index=False)
    write_atomically(path, content)


def read_rows(path: Path, subject: Mapping[str, Any]) -> "pandas.DataFrame | None":
    """Return the rows of a subject without the columns of `subject`; None if there are none."""
    if not path.is_file():
        return None
    pandas = required("pandas")
    as_text = path.suffix == ".csv"
    table = (
        # A name may be "None" or "NA": nothing but an empty place is missing.
        pandas.read_csv(path, keep_default_na=False, na_values=[""])
        if as_text
        else pandas.read_parquet(path)
    )
    table = table[_is_of(subject, table)].drop(columns=list(subject), errors="ignore")
    return table if len(table) else None


def _is_of(subject: Mapping[str, Any], table: "pandas.DataFrame") -> "pandas.Series":
    return (table.reindex(columns=list(subject)) == list(subject.values())).all(axis=1)


def _read_text(source: StringIO | Path) -> "pandas.DataFrame":
    return required("pandas").read_csv(source, dtype=str, keep_default_na=False)


def add_account(
    folder: Path,
    subject: Mapping[str, Any],
    figures: Sequence[str],
    device: torch.device,
    **how: Any,
) -> None:
    """Say in analysis.json how these figures of a subject were computed, and with what."""
    path = folder / ACCOUNT
    kept = []
    for entry in read_accounts(path):
        if all(entry.get(name) == value for name, value in subject.items()):
            entry["figures"] = [name for name in entry["figures"] if name not in figures]
        if entry["figures"]:
            kept.append(entry)
    made = {"hyla": __version__, "git_commit": git_commit(), **environment(device)}
    entry = {**subject, "figures": list(figures), **how, **made}
    content = json.dumps({"subjects": [*kept, entry]}, indent=1) + "\n"
    write_atomically(path, content.encode())


def read_accounts(path: Path) -> list[dict[str, Any]]:
    """Return the entries of an analysis.json: one for a subject and what was computed at a time.

    Raises:
        ValueError: the file is something else.
    """
    if not path.is_file():
        return []
    try:
        account = json.loads(path.read_bytes())
        # Once, what is now said for each subject was said for all of them together.
        common = {name: value for name, value in account.items() if name != "subjects"}
        return [{**common, **subject} for subject in account["subjects"]]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not what analyses write: move it away, or choose another folder"
        ) from error

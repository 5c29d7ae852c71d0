"""Rows to CSV and back, with nothing but the standard library: it has to work beside any GPU."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyla._files import write_atomically
from hyla.results.runs import Row

if TYPE_CHECKING:
    import pandas


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows, replacing the file at once."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the columns of rows that need not have the same, in the order of their first use."""
    return list(dict.fromkeys(name for row in rows for name in row))


def read_csv(path: Path) -> list[Row]:
    """Return the rows with numbers, truth values and None put back; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def rows_of_frame(frame: "pandas.DataFrame", *, digits: str, **columns: Any) -> list[Row]:
    """Return a table of pandas as rows, None for what is missing, with columns before its own.

    Numbers are rounded as the format `digits` has it: as many as a figure needs.
    """

    def plain(name: str, value: Any) -> Any:
        if isinstance(value, float):
            if math.isnan(value):
                return None
            # pandas makes a column of layers real if one is missing. Rounded as a Python number: in
            # float32, as codes are, it would still take 17 digits to write.
            return int(value) if name.endswith("layer") else float(f"{value:{digits}}")
        return value

    return [
        {**columns, **{str(name): plain(str(name), value) for name, value in record.items()}}
        for record in frame.to_dict("records")
    ]


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

"""Records as lines of JSON that any reader takes, NaN and infinity included.

JSON has no NaN or infinity. In ``metrics.jsonl`` and ``finished.json`` such a number is written
as ``null``, and the record's ``"nonfinite"`` entry says what it was and where, as a JSON pointer:
``{"step": 7, "loss": [0.5, null], "nonfinite": {"/loss/1": "nan"}}``. Any JSON reader can read
that; `restore_nonfinite` puts the numbers back.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hyla.training.run.errors import RunDirectoryError

RESTORE = "Restore it from a copy, or delete it to go on without what it held"
_NONFINITE = "nonfinite"


def parse_records(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield (line, record) of JSON lines, up to a torn end.

    A kill tears the last line only, a power cut perhaps several; a broken line with good ones
    after it was made by neither, and is for a person to look at. So is a file without any record,
    unless it is the torn beginning of a first one.
    """
    broken, number, line = 0, 0, b""
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or "step" not in record:
            broken = broken or number
        elif broken:
            raise RunDirectoryError(
                f"{path}, line {broken}, is not a metrics record: repair or remove that line."
            )
        else:
            yield line, record
    if broken == 1 and not (number == 1 and _is_torn_record(line)):
        raise RunDirectoryError(f"{path} is damaged: it holds no metrics record. {RESTORE}.")


def _is_torn_record(line: bytes) -> bool:
    """Whether it may be what a kill, or with zeros a power cut, leaves of a line."""
    return not line.endswith(b"\n") and line.strip(b"\0")[:1] in (b"", b"{")


def dump_record(record: Mapping[str, Any]) -> str:
    """Return the record as a line of JSON, without its end."""
    if _NONFINITE in record:
        raise ValueError(f"The key {_NONFINITE!r} is reserved: choose another name.")
    nonfinite: dict[str, str] = {}
    finite = _replace_nonfinite(record, "", nonfinite)
    if nonfinite:
        finite[_NONFINITE] = nonfinite
    return json.dumps(finite, allow_nan=False)


def _replace_nonfinite(value: Any, pointer: str, found: dict[str, str]) -> Any:
    """Copy `value` with null for every NaN or infinity, noting each in `found` by its pointer."""
    if isinstance(value, float) and not math.isfinite(value):
        found[pointer] = str(value)
        return None
    if isinstance(value, Mapping):
        return {
            key: _replace_nonfinite(item, f"{pointer}/{_escape(str(key))}", found)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item, f"{pointer}/{i}", found) for i, item in enumerate(value)]
    return value


def restore_nonfinite(record: dict[str, Any]) -> dict[str, Any]:
    """Put the numbers back, in place."""
    for pointer, number in record.pop(_NONFINITE, {}).items():
        *parents, last = (_unescape(part) for part in pointer.split("/")[1:])
        holder: Any = record
        for part in parents:
            holder = holder[int(part) if isinstance(holder, list) else part]
        holder[int(last) if isinstance(holder, list) else last] = float(number)
    return record


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")

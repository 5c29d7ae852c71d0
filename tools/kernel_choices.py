"""Write the table by which backend "auto" chooses, from what benchmarks measured.

    python tools/kernel_choices.py FILE...

Which `hyla bench attention` and `hyla bench small-attention` write, of all rows or of some. A
kernel that no file has a row of is one that "auto" leaves alone, small heads and decoding excepted:
those it takes unmeasured. Of several attentions that one
kernel computes at one shape, that which gains least by it speaks for all.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

_SHAPE = ("dtype", "T", "H", "D")


def choices(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an entry per kernel and shape: forward and backward, and by the reference path."""
    chosen: dict[tuple, dict[str, Any]] = {}
    for entry in _entries(rows):
        key = tuple(entry[name] for name in ("kernel", *_SHAPE))
        if key not in chosen or _gain(entry) < _gain(chosen[key]):
            chosen[key] = entry
    return list(chosen.values())


def _entries(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row.get("pass") != "fwd+bwd":  # decoding, or a row that failed
            continue
        if "fused_us" in row:
            kernel, fused, reference = "small_head", row["fused_us"] / 1e3, row["eager_us"] / 1e3
            measured = row["dtype"] == "float32"
        else:
            kernel, fused, reference = row["kernel"], row["hyla_ms"], row["reference_ms"]
            measured = reference is not None
        if measured:
            times = {"fused_ms": round(fused, 4), "reference_ms": round(reference, 4)}
            yield {"kernel": kernel, **{name: row[name] for name in _SHAPE}, **times}


def _gain(entry: dict[str, Any]) -> float:
    return entry["reference_ms"] / entry["fused_ms"]


def main() -> None:
    """Read the measurements named on the command line and write the table into the package."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    rows = [row for name in sys.argv[1:] for row in json.loads(Path(name).read_text())["rows"]]
    lines = ",\n".join(json.dumps(entry) for entry in choices(rows))
    target = resources.files("hyla.attention.kernels").joinpath("measured.json")
    Path(str(target)).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()

"""Write the table by which backend "auto" chooses, from what the two benchmarks measured.

    python tools/kernel_choices.py ATTENTION.json [SMALL_ATTENTION.json]

Which `hyla bench attention` and `hyla bench small-attention` write.
"""

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any


def choices(attention: dict[str, Any], small: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an entry per measured shape: forward and backward, fused and by the reference path."""
    large = [
        {
            **{name: row[name] for name in ("kernel", "dtype", "T", "H", "D")},
            "fused_ms": round(row["hyla_ms"], 4),
            "reference_ms": round(row["reference_ms"], 4),
        }
        for row in attention["rows"]
        if row["pass"] == "fwd+bwd" and row.get("reference_ms") is not None
    ]
    return large + [
        {
            "kernel": "small_head",
            **{name: row[name] for name in ("dtype", "T", "H", "D")},
            "fused_ms": round(row["fused_us"] / 1e3, 4),
            "reference_ms": round(row["eager_us"] / 1e3, 4),
        }
        for row in small["rows"]
        if row["pass"] == "fwd+bwd" and row["dtype"] == "float32"
    ]


def main() -> None:
    """Read the measurements named on the command line and write the table into the package."""
    if not 2 <= len(sys.argv) <= 3:
        raise SystemExit(__doc__)
    attention, *small = (json.loads(Path(name).read_text()) for name in sys.argv[1:])
    table = choices(attention, small[0] if small else {"rows": []})
    lines = ",\n".join(json.dumps(entry) for entry in table)
    target = resources.files("hyla.attention.kernels").joinpath("measured.json")
    Path(str(target)).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()

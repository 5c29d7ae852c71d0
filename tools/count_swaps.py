"""Count what thousands of swaps gave with a shipped model, for the explorer's page.

    python tools/count_swaps.py NAME SWAPS.csv ...

Written beside the shipped model NAME from tables of `hyla latents`: of held-out combinations of
rules, with all layers swapped together. The tables may be of other members of its run too: their
swaps are counted together, and their seeds named.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyla._files import write_json
from hyla.explorer.swap_rates import path_of
from hyla.latents.measures.confidence import wilson_interval

_SPLIT = "ood_unpermuted"
_PAIRS = ("row", "all keys")
_COLUMNS = {"follows": "donor_rate", "stays": "stay_rate", "copies": "copy_rate"}


def rates_of(tables: Sequence[Path]) -> dict[str, Any]:
    """Return the rates of all layers together, by pairs and code, of these tables together."""
    rows = [row for table in tables for row in _rows(table)]
    if len({row["run"] for row in rows}) != 1:
        raise ValueError("the tables must be of one run, and hold swaps of held-out combinations")
    last = max(row["last_layer"] for row in rows)
    rates: dict[str, dict[str, list[dict[str, str]]]] = {pairs: {} for pairs in _PAIRS}
    for row in rows:
        if row["pairs"] in rates and (row["first_layer"], row["last_layer"]) == ("0", last):
            rates[row["pairs"]].setdefault(row["code"], []).append(row)
    return {
        "run": rows[0]["run"],
        "seeds": sorted({int(row["seed"]) for row in rows}),
        "rates": {
            pairs: {code: _together(alike) for code, alike in codes.items()}
            for pairs, codes in rates.items()
        },
    }


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as lines:
        return [row for row in csv.DictReader(lines) if row["split"] == _SPLIT]


def _together(rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Count the swaps of several models as one sample."""
    numbers = [int(row["instances"]) for row in rows]
    result: dict[str, Any] = {"swaps": sum(numbers)}
    for name, column in _COLUMNS.items():
        shares = [row[column] for row in rows]
        if not all(shares):  # a code that is nobody's has no answer to copy
            result[name] = None
            continue
        hits = sum(round(float(share) * n) for share, n in zip(shares, numbers, strict=True))
        interval = wilson_interval(hits, sum(numbers))._asdict()
        result[name] = {key: round(value, 4) for key, value in interval.items()}
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the rates of a shipped model from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", metavar="NAME", help="of the shipped model, such as sraven-hyla")
    parser.add_argument("tables", type=Path, nargs="+", metavar="SWAPS.csv")
    given = parser.parse_args(arguments)
    try:
        rates = rates_of(given.tables)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    path = path_of(given.name)
    path.parent.mkdir(exist_ok=True)
    write_json(path, rates)
    print(f"{path}: {len(given.tables)} tables, seeds {rates['seeds']}")


if __name__ == "__main__":
    main()

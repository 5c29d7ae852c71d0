"""`python -m hyla.explorer.swap_rates NAME SWAPS.csv ...`: what thousands of swaps gave.

Written beside the shipped model NAME from tables of `hyla latents`: of held-out combinations of
rules, with all layers swapped together. The tables may be of other members of its run too: their
swaps are counted together, and their seeds named.
"""

import argparse
import csv
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hyla._files import write_json
from hyla.explorer.packed import shipped_folder
from hyla.explorer.web import schemas
from hyla.latents.measures.confidence import wilson_interval

_SPLIT = "ood_unpermuted"
_PAIRS = ("row", "all keys")
_COLUMNS = {"follows": "donor_rate", "stays": "stay_rate", "copies": "copy_rate"}


def counted(
    name: str, code: str, *, pairs: str, same_rule: bool, same_operands: bool
) -> schemas.Counted | None:
    """Return what swaps like this one did in models like NAME, if that is known."""
    kind, control = _kinds(code, same_rule=same_rule, same_operands=same_operands)
    known = _known(name)
    if known is None or kind not in known["rates"][pairs]:
        return None
    rates = known["rates"][pairs]
    found = schemas.Counted(
        **rates[kind], seeds=known["seeds"], control=rates[control]["follows"] if control else None
    )
    # Without another rule there is none to follow; the tables then hold the rate of chance.
    no_other = same_rule or code == "zero"
    return found.model_copy(update={"follows": None}) if no_other else found


def _kinds(code: str, *, same_rule: bool, same_operands: bool) -> tuple[str, str | None]:
    """Return a code's name in `measures.swaps.CODES`, and that with its heads permuted."""
    match code, same_rule:
        case "zero", _:
            return "zero", None
        case "rule mean", False:
            return "operation mean", None
        case "rule mean", True:
            return "own operation mean", None  # which nobody counted
        case _, True:
            return "same operation" + " and operands" * same_operands, None
    donor = "donor, same operands" if same_operands else "donor"
    return donor, "donor, same operands, permuted heads" if same_operands else "permuted heads"


@cache
def _known(name: str) -> dict[str, Any] | None:
    path = _path(name)
    return json.loads(path.read_bytes()) if path.exists() else None


def _path(name: str) -> Path:
    return shipped_folder() / "swap_rates" / f"{name}.json"


# --- from the tables -----------------------------------------------------------------------------


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
    parser = argparse.ArgumentParser(prog="python -m hyla.explorer.swap_rates", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="of the shipped model, such as sraven-hyla")
    parser.add_argument("tables", type=Path, nargs="+", metavar="SWAPS.csv")
    given = parser.parse_args(arguments)
    try:
        rates = rates_of(given.tables)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    path = _path(given.name)
    path.parent.mkdir(exist_ok=True)
    write_json(path, rates)
    print(f"{path}: {len(given.tables)} tables, seeds {rates['seeds']}")


if __name__ == "__main__":
    main()

"""What thousands of swaps gave with a shipped model, as tools/count_swaps.py wrote it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from hyla.explorer.packed import shipped_folder
from hyla.explorer.web import schemas


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
    path = path_of(name)
    return json.loads(path.read_bytes()) if path.exists() else None


def path_of(name: str) -> Path:
    """Return the file of the rates of a shipped model."""
    return shipped_folder() / "swap_rates" / f"{name}.json"

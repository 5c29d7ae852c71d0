"""Results of swapping codes, as tidy tables: by layer, by operation, by head."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hyla._optional import required
from hyla.latents.measures.swaps import Swaps

if TYPE_CHECKING:
    import pandas


def swap_table(swaps: Swaps) -> "pandas.DataFrame":
    """Swap codes at each layer alone and at layers together; a row for each and each kind of code.

    The first row, of the recipients' own code, is what happens without any intervention.
    """
    rows = [{"code": "own", **swaps.outcome(swaps.clean, swaps.donation("donor"))}]
    for kind in swaps.kinds:
        donation = swaps.donation(kind)
        for layers in layer_sets(swaps.layers):
            predictions = swaps.predictions(donation, layers)
            where = {"code": kind, "first_layer": layers[0], "last_layer": layers[-1]}
            rows.append({**where, **swaps.outcome(predictions, donation)})
    return _table(swaps, rows)


def layer_sets(layers: Sequence[int]) -> list[Sequence[int]]:
    """Return each layer alone, then from each layer to the last together."""
    return [[layer] for layer in layers] + [layers[i:] for i in range(len(layers) - 1)]


def swap_matrix(
    swaps: Swaps, *, layers: Sequence[int] | None = None, code: str = "donor"
) -> "pandas.DataFrame":
    """Give every operation's code to every operation; a row for each pair of them.

    `layers` are swapped together (all by default); `code` is one of `CODES` that is about a donor's
    operation. On the diagonal there is nothing to follow.
    """
    own = swaps.recipients.operations
    names = swaps.study.operations
    rows = []
    chosen = swaps.layers if layers is None else layers
    same_operands = code == "donor, same operands"
    for donated in swaps.donors.operations.unique().tolist():
        eligible = (swaps.donors.operations == donated).expand(len(own), -1)
        if same_operands:
            eligible = eligible & swaps.same_operands()
        donation = swaps.donation("donor" if same_operands else code, swaps.pick(eligible))
        predictions = swaps.predictions(donation, chosen)
        for received in own.unique().tolist():
            where = {"code": code, "recipient": names[received], "donor": names[donated]}
            rows.append({**where, **swaps.outcome(predictions, donation, own == received)})
    return _table(swaps, rows)


def head_table(swaps: Swaps) -> "pandas.DataFrame":
    """Take single heads out of the code (zero), or put a donor's in; a row for each operation.

    Shows which coordinates of the code carry an operation.
    """
    own = swaps.recipients.operations
    rows = []
    for kind in ("zero", "donor"):
        donation = swaps.donation(kind)
        for layer, codes in sorted(donation.codes.items()):
            for head in range(codes.shape[-1]):
                predictions = swaps.predictions(donation, [layer], heads=[head])
                for operation in own.unique().tolist():
                    where = {"code": kind, "layer": layer, "head": head}
                    where[swaps.study.operation] = swaps.study.operations[operation]
                    rows.append({**where, **swaps.outcome(predictions, donation, own == operation)})
    return _table(swaps, rows)


def _table(swaps: Swaps, rows: Sequence[Mapping[str, Any]]) -> "pandas.DataFrame":
    where = {"split": swaps.split, "pairs": swaps.pairs}
    return required("pandas").DataFrame([{**where, **row} for row in rows])

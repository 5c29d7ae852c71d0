"""How each figure of latent codes is read: a few sentences below its heading on the page."""

from collections.abc import Sequence

from hyla.lab.experiments.shared.code_panels import chosen, layers_in
from hyla.results.runs import Row

_CAPTIONS = {
    # Of a task these are unseen compositions, of a language model texts: the caption serves both.
    "embedding": "A point is one code, and near points are similar codes; how far apart distant "
    "ones lie says nothing. If codes said the {operation} and nothing else, every colour would be "
    "a cluster of its own.",
    "mean_codes": "A row is the mean code of a {operation}, a column the number of one head: "
    "where rows are alike, the mean code does not tell their {operation}s apart.",
    "sample_codes": "Codes of single instances below each other, those of one {operation} "
    "together: what stays the same in a band and changes at its end is what a classifier can read.",
    "similarity": "1 is the same direction, 0 none in common, -1 the opposite. Blocks of "
    "{operation}s with similar codes show on the diagonal.",
    "distances": "Above the dotted line, codes of different {operation}s are farther apart than "
    "codes of one; bars are 95 % bootstrap intervals. Where all codes are equal there is no ratio.",
    "decoding": "A classifier is trained on instances of known compositions and scored on unseen "
    "ones. The code (full line) adds something only where it is above every dashed line: what can "
    "be read from inputs and target, from the residual stream that the layer reads, from an "
    "untrained network's codes, or by chance (shuffled labels).",
    "swaps": "The model answers with another code in place of its own. The answer follows if it is "
    "what the donor's {operation} prescribes for this instance, stays if it is what its own does, "
    "and copies if it is the donor's own answer. Permuted heads and no code at all are the "
    "controls: a code carries an operation over only where more follow than with these.",
    "swap_matrix": "Row: the {operation} of the instance; column: that of the code it is given. "
    "Gaps are pairs of which nothing could be counted.",
    "heads": "Above, one head's number is set to zero: dark cells are heads that the answer needs. "
    "Below, one head's number is a donor's: light cells are heads that carry its {operation}.",
}


def caption(table: str, operation: str, rows: Sequence[Row] = ()) -> str:
    """Return how the figure of a table is read; of a map, also where there is nothing to see."""
    text = _CAPTIONS[table].format(operation=operation)
    if table == "embedding" and (flat := _without_structure(rows)):
        layers = ", ".join(str(layer + 1) for layer in flat)
        text += f" In layer {layers} all codes are the same."
    return text


def _without_structure(rows: Sequence[Row]) -> list[int]:
    """Return the layers whose points all lie in one place, beside those of other layers."""

    def extent(layer: int) -> float:
        own = chosen(rows, layer=layer)
        return max(max(r[axis] for r in own) - min(r[axis] for r in own) for axis in ("x", "y"))

    extents = {layer: extent(layer) for layer in layers_in(rows)}
    return [layer for layer, size in extents.items() if size <= 0.01 * max(extents.values())]

"""Tables of latent codes in short: what the command prints of them, and a page begins with."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hyla.lab.experiments.shared.code_panels import chosen
from hyla.latents.studies import Study
from hyla.results.runs import Row

_CONTROLS = ("shuffled labels", "untrained network", "inputs", "target", "inputs and target")


class BestLayer(NamedTuple):
    """What is decoded from what, and how well at the layer where that is best."""

    label: str
    predictor: str
    layer: int | None
    """Counted from 0; None for what belongs to no layer."""
    accuracy: float
    f1: float


def best_layers(decoding: Sequence[Row], study: Study, pairs: str) -> Iterator[BestLayer]:
    """Yield the scores of unseen compositions in the study's usual reading, from these pairs.

    `decoding` has the rows of one model. Both scores are those of one layer: the best by the
    metric that the paper scores the study by.
    """
    scores: dict[tuple[str, str], dict[int | None, dict[str, float]]] = {}
    for row in chosen(decoding, split=study.unseen, **{"class": "all"}):
        # The inputs and the residual stream are those of no pairs.
        if row["pairs"] in (None, pairs):
            layers = scores.setdefault((row["label"], row["predictor"]), {})
            layers.setdefault(row["layer"], {})[row["metric"]] = row["value"]
    for (label, predictor), layers in scores.items():
        best = max(layers, key=lambda layer: layers[layer][study.decoding_metric])
        yield BestLayer(label, predictor, best, layers[best]["accuracy"], layers[best]["f1"])


def swapped_everywhere(swaps: Sequence[Row]) -> list[Row]:
    """Return the rows of unseen compositions in which all layers, or none, have other codes."""
    unseen = [row for row in swaps if row["split"].startswith("ood")]
    last = max(row["last_layer"] for row in unseen if row["last_layer"] is not None)
    everywhere = ((0, last), (None, None))
    return [row for row in unseen if (row["first_layer"], row["last_layer"]) in everywhere]


def findings(tables: Mapping[str, Sequence[Row]], study: Study) -> list[str]:
    """Return at most five sentences on the codes of one model, each with its numbers."""
    return [*_decoded(tables.get("decoding", ()), study), *_swapped(tables.get("swaps", ()))]


def _decoded(decoding: Sequence[Row], study: Study) -> list[str]:
    """Compare what the code says of the operation with what else does."""
    pairs = next((row["pairs"] for row in decoding if row["predictor"] == "code"), "")
    best = list(best_layers(decoding, study, pairs))
    label = best[-1].label if best else ""  # of several, the one that asks for all at once
    metric = study.decoding_metric
    score = {row.predictor: getattr(row, metric) for row in best if row.label == label}
    if "code" not in score:
        return []
    layer = next(r.layer for r in best if (r.label, r.predictor) == (label, "code"))
    where = f" of layer {layer + 1}" if layer is not None else ""
    found = [
        f"From the codes{where} the {label} of unseen compositions is read with a score ({metric}) "
        f"of {score['code']:.2f}."
    ]
    controls = {name: score[name] for name in _CONTROLS if name in score}
    if controls:
        strongest = max(controls, key=lambda name: controls[name])
        adds = "to that" if score["code"] > controls[strongest] else "nothing"
        found.append(
            f"Of the controls {strongest} gives most, {controls[strongest]:.2f}: the code adds "
            f"{adds}."
        )
    if "residual stream" in score:
        found.append(
            f"The residual stream, which the layer reads, gives {score['residual stream']:.2f}."
        )
    return found


def _swapped(swaps: Sequence[Row]) -> list[str]:
    """Say what other codes do to answers, where that can be told from copying them."""
    everywhere = swapped_everywhere(swaps) if swaps else []
    rates = {row["code"]: row for row in everywhere if row["pairs"] == everywhere[0]["pairs"]}
    found = []
    if "donor" in rates and "permuted heads" in rates:
        follow, chance = (rates[code]["donor_rate"] for code in ("donor", "permuted heads"))
        if follow is not None and chance is not None:
            found.append(
                f"Given the code of another operation, {follow:.0%} of the answers follow it, "
                f"{chance:.0%} with its heads permuted. (With the same operands, to follow is to "
                "copy: that says nothing.)"
            )
    stay = rates.get("same operation", {}).get("stay_rate")
    if stay is not None:
        found.append(f"Given another instance's code of the same operation, {stay:.0%} stay.")
    return found

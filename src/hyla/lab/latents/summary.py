"""Tables of latent codes in short: what the command prints of them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hyla.lab.experiments.shared.code_panels import chosen
from hyla.results.runs import Row
from hyla.tasks.study import Study


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

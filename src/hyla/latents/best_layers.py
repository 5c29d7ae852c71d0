"""A table of decoding in short: for each predictor, the layer from which it does best."""

from collections.abc import Iterator
from typing import NamedTuple

from hyla.latents.figures import Table
from hyla.latents.studies import Study


class BestLayer(NamedTuple):
    """What is decoded from what, and how well at the layer where that is best."""

    label: str
    predictor: str
    layer: int | None
    """Counted from 0; None for what belongs to no layer."""
    accuracy: float
    f1: float


def best_layers(decoding: Table, study: Study, pairs: str) -> Iterator[BestLayer]:
    """Yield the scores of unseen compositions in the study's usual reading, from these pairs.

    `decoding` is what `decoding_table` returns. Both scores are those of one layer: the best by
    the metric that the paper scores the study by.
    """
    rows = decoding[
        (decoding["split"] == study.unseen)
        & (decoding["class"] == "all")
        # The inputs and the residual stream are those of no pairs.
        & (decoding["pairs"].isna() | (decoding["pairs"] == pairs))
    ]
    for (label, predictor), layers in rows.groupby(["label", "predictor"], sort=False):
        deciding = layers[layers["metric"] == study.decoding_metric]
        best = deciding.loc[deciding["value"].idxmax(), "layer"]
        has_layers = layers["layer"].notna().all()
        there = layers[layers["layer"] == best] if has_layers else layers
        value = there.set_index("metric")["value"]
        layer = int(best) if has_layers else None
        yield BestLayer(label, predictor, layer, value["accuracy"], value["f1"])

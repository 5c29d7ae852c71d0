"""Figure 2B: the terms of a function can be decoded from the code of its query."""

import dataclasses

from hyla.figures.drawing import Figure, Lines
from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict, percent
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_measurements import decoding, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import (
    READINGS,
    controls_by_layer,
    f1,
    f1_by_layer,
    methods_in,
    rows_of,
    seeds_in,
)
from hyla.lab.grids import METHODS
from hyla.results.selection import Estimate
from hyla.results.tables import Results

_CONTROLS = ("shuffled labels", "untrained network", "inputs and target")
_STREAM = "residual stream"


def _figure(results: Results) -> Figure | None:
    query, context = READINGS
    labels = ("term 1", "term 2", "terms")
    rows = [
        [f1_by_layer(results, label, query) for label in labels],
        [controls_by_layer(results, "terms", query, method) for method in METHODS],
        [_titled(f1_by_layer(results, label, context), "one context") for label in labels],
    ]
    panels = [[panel for panel in row if panel is not None] for row in rows]
    note = (
        f"Mean F1 over the classes, ± standard error over {seeds_in(results.rows)}. `terms` asks "
        "of each term whether the function has it; in `term 1` and `term 2` the terms are in "
        "ascending order, as the authors label them. One query point for all functions, and where "
        "the title says so one context for all."
    )
    drawn = [row for row in panels if row]
    return Figure(panels=drawn, note=note) if drawn else None


def _titled(panel: Lines | None, addition: str) -> Lines | None:
    return panel and dataclasses.replace(panel, title=f"{panel.title}: {addition}")


def _verdicts(results: Results) -> list[Verdict]:
    codes = {split: rows_of(results, predictor="code", split=split) for split in READINGS}
    return [
        _verdict(results, split, method)
        for split in READINGS
        for method in methods_in(codes[split])
    ]


def _verdict(results: Results, split: str, method: str) -> Verdict:
    rows = rows_of(results, predictor="code", label="terms", split=split, attention=method)

    def score(predictor: str, layer: int | None = None) -> Estimate | None:
        found = f1(results, "terms", split, method, predictor)  # does not depend on the layer
        return found or f1(results, "terms", split, method, predictor, layer)

    layers = {row["layer"] for row in rows}
    codes = {layer: found for layer in layers if (found := score("code", layer))}
    best = max(codes, key=lambda layer: codes[layer].mean)
    beside = {name: found for name in (*_CONTROLS, _STREAM) if (found := score(name, best))}
    controls = [beside[name].mean for name in _CONTROLS if name in beside]
    lead = codes[best].mean - max(controls, default=0.0)
    numbers = ", ".join(f"{name} {percent(found)}" for name, found in beside.items())
    return Verdict(
        claim=f"The latent code of the query token is predictive of the terms ({method}; "
        f"{READINGS[split]}).",
        status=REPRODUCED if lead > 0.1 else PARTLY if lead > 0 else NOT,
        number=f"F1 on unseen functions, layer {best + 1}: code {percent(codes[best])}; "
        f"{numbers} (counts as reproduced from 10 above all of these but the stream)",
    )


EXPERIMENT = Experiment(
    name="fig2b",
    title="Figure 2B: decoding the terms from the latent code",
    shows="F1 of logistic regressions, trained on codes of training functions, that predict the "
    "terms of unseen functions from the code of the query attending to itself.",
    sweeps=method_sweeps("fuzzy"),
    measurement=on("fuzzy", decoding),
    figure=_figure,
    verdicts=_verdicts,
)

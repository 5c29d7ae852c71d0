"""Figure 2B: the terms of a function can be decoded from the code of its query."""

import dataclasses
import functools
import statistics

from hyla.figures.drawing import Figure, Lines
from hyla.lab.claims import Claim, Size, percent
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_measurements import decoding, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import (
    READINGS,
    controls_by_layer,
    f1_by_layer,
    f1_by_seed,
    lead,
    methods_in,
    over,
    rows_of,
    seeds_in,
)
from hyla.lab.grids import METHODS
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


def _claims(results: Results) -> list[Claim]:
    codes = {split: rows_of(results, predictor="code", split=split) for split in READINGS}
    return [
        claim
        for split in READINGS
        for method in methods_in(codes[split])
        for claim in _claim(results, split, method)
    ]


def _claim(results: Results, split: str, method: str) -> list[Claim]:
    """Claim it where codes and something to compare them with were decoded of the same models."""
    scores = functools.partial(f1_by_seed, results, "terms", split, method)
    rows = rows_of(results, predictor="code", label="terms", split=split, attention=method)
    layers = {row["layer"] for row in rows}
    codes = {layer: found for layer in layers if (found := scores("code", layer))}
    if not codes:
        return []
    best = max(codes, key=lambda layer: statistics.fmean(codes[layer].values()))
    # Inputs and targets have no layer.
    beside = {name: scores(name) or scores(name, best) for name in (*_CONTROLS, _STREAM)}
    known = {name: found for name, found in beside.items() if found.keys() & codes[best]}
    controls = [found for name, found in known.items() if name in _CONTROLS]
    numbers = ", ".join(f"{name} {percent(over(found))}" for name, found in known.items())
    if not controls:
        return []
    claim = Claim(
        text=f"The latent code of the query token is predictive of the terms ({method}; "
        f"{READINGS[split]}).",
        numbers=f"F1 on unseen functions, layer {best + 1}: code {percent(over(codes[best]))}; "
        f"{numbers}",
        effects=[lead(codes[best], control) for control in controls],
        size=Size(least=0.1, why="above each of these but the stream, seed by seed"),
    )
    return [claim]


EXPERIMENT = Experiment(
    name="fig2b",
    title="Figure 2B: decoding the terms from the latent code",
    shows="F1 of logistic regressions, trained on codes of training functions, that predict the "
    "terms of unseen functions from the code of the query attending to itself.",
    sweeps=method_sweeps("fuzzy"),
    measurement=on("fuzzy", decoding),
    figure=_figure,
    claims=_claims,
)

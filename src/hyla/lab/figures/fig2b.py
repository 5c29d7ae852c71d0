"""Figure 2B: the terms of a function can be decoded from the code of its query."""

import dataclasses

from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict, percent
from hyla.lab.drawing import Figure, Lines
from hyla.lab.experiment import Experiment
from hyla.lab.grids import METHODS
from hyla.lab.latent_measurements import decoding, method_sweeps, on
from hyla.lab.latent_panels import controls_by_layer, f1, f1_by_layer, methods_in, rows_of
from hyla.lab.results import Results

_READINGS = {
    "ood_fixed_query": "one query point for all functions",
    "ood_fixed_context": "one context for all functions, as the paper's text has it",
}
_CONTROLS = ("shuffled labels", "untrained network")


def _figure(results: Results) -> Figure | None:
    query, context = _READINGS
    labels = ("term 1", "term 2", "terms")
    rows = [
        [f1_by_layer(results, label, query) for label in labels],
        [controls_by_layer(results, "terms", query, method) for method in METHODS],
        [_titled(f1_by_layer(results, label, context), "one context for all") for label in labels],
    ]
    panels = [[panel for panel in row if panel is not None] for row in rows]
    note = (
        "Mean F1 over the classes. `terms` asks of each term whether the function has it; in "
        "`term 1` and `term 2` the terms are in ascending order, as the authors label them. First "
        "two rows: one query point for all functions; last row: one context for all."
    )
    drawn = [row for row in panels if row]
    return Figure(panels=drawn, note=note) if drawn else None


def _titled(panel: Lines | None, addition: str) -> Lines | None:
    return panel and dataclasses.replace(panel, title=f"{panel.title}: {addition}")


def _verdicts(results: Results) -> list[Verdict]:
    codes = {split: rows_of(results, predictor="code", split=split) for split in _READINGS}
    return [
        _verdict(results, split, method)
        for split in _READINGS
        for method in methods_in(codes[split])
    ]


def _verdict(results: Results, split: str, method: str) -> Verdict:
    rows = rows_of(results, predictor="code", split=split, attention=method)
    scores = {
        layer: score
        for layer in {row["layer"] for row in rows}
        if (score := f1(results, "terms", split, method, "code", layer)) is not None
    }
    best = max(scores, key=lambda layer: scores[layer].mean)
    controls = {
        name: score
        for name in _CONTROLS
        if (score := f1(results, "terms", split, method, name, best)) is not None
    }
    lead = min(scores[best].mean - score.mean for score in controls.values())
    numbers = ", ".join(f"{name} {percent(score)}" for name, score in controls.items())
    return Verdict(
        claim=f"The latent code of the query token is predictive of the terms ({method}; "
        f"{_READINGS[split]}).",
        status=REPRODUCED if lead > 0.1 else PARTLY if lead > 0 else NOT,
        number=f"F1 on unseen functions, layer {best + 1}: code {percent(scores[best])}; "
        f"{numbers} (reproduced: 10 above both controls)",
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

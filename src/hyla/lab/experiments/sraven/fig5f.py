"""Figure 5F: the rule can be decoded from the code."""

from hyla.figures.drawing import Figure
from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict, percent
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_measurements import decoding, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import (
    controls_by_layer,
    f1,
    f1_by_layer,
    methods_in,
    rows_of,
    seeds_in,
)
from hyla.results.tables import Results

_UNSEEN = "ood_unpermuted"


def _figure(results: Results) -> Figure | None:
    panels = [f1_by_layer(results, "rule", _UNSEEN)]
    panels += [
        controls_by_layer(results, "rule", _UNSEEN, method)
        for method in methods_in(rows_of(results, predictor="code"))
    ]
    drawn = [panel for panel in panels if panel is not None]
    note = f"Mean ± standard error over {seeds_in(results.rows)}."
    return Figure(panels=[drawn], note=note) if drawn else None


def _verdicts(results: Results) -> list[Verdict]:
    verdicts = []
    for method in methods_in(rows_of(results, predictor="code")):
        layers = sorted({r["layer"] for r in rows_of(results, predictor="code", attention=method)})
        first, last = (
            f1(results, "rule", _UNSEEN, method, "code", layer) for layer in (layers[0], layers[-1])
        )
        untrained = f1(results, "rule", _UNSEEN, method, "untrained network", layers[-1])
        if first is None or last is None or untrained is None:
            continue
        lead = last.mean - untrained.mean
        status = REPRODUCED if lead > 0.1 and last.mean >= first.mean else PARTLY
        if lead <= 0:
            status = NOT
        verdicts.append(
            Verdict(
                claim=f"Especially in later layers the code is predictive of the rule ({method}).",
                status=status,
                number=f"F1 on unseen tasks: {percent(first)} in the first layer, {percent(last)} "
                f"in the last; {percent(untrained)} there without training (counts as "
                "reproduced from 10 above that, and no lower than in the first layer)",
            )
        )
    return verdicts


EXPERIMENT = Experiment(
    name="fig5f",
    title="Figure 5F: decoding the rule from the latent code",
    shows="F1 of logistic regressions, trained on codes of training tasks, that predict the rule "
    "of unseen tasks, beside what else the rule can be read off.",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", decoding),
    figure=_figure,
    verdicts=_verdicts,
)

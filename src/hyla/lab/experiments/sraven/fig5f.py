"""Figure 5F: the rule can be decoded from the code, also from that of the recommended HYLA."""

import functools

from hyla.attention import RECOMMENDED
from hyla.figures.drawing import Figure
from hyla.lab.claims import Claim, Size, percent
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_measurements import decoding, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import (
    controls_by_layer,
    f1_by_layer,
    f1_by_seed,
    lead,
    methods_in,
    over,
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


def _claims(results: Results) -> list[Claim]:
    claims = []
    for method in methods_in(rows_of(results, predictor="code")):
        scores = functools.partial(f1_by_seed, results, "rule", _UNSEEN, method)
        layers = sorted({r["layer"] for r in rows_of(results, predictor="code", attention=method)})
        first, last = (scores("code", layer) for layer in (layers[0], layers[-1]))
        untrained = scores("untrained network", layers[-1])
        if not (last.keys() & first and last.keys() & untrained):  # of the same models
            continue
        claims.append(
            Claim(
                text=f"Especially in later layers the code is predictive of the rule ({method}).",
                numbers=f"F1 on unseen tasks: {percent(over(first))} in the first layer, "
                f"{percent(over(last))} in the last; {percent(over(untrained))} there without "
                "training",
                effects=[lead(last, untrained), lead(last, first)],
                size=Size(least=0.1, why="above the untrained and the first, seed by seed"),
            )
        )
    return claims


EXPERIMENT = Experiment(
    name="fig5f",
    title="Figure 5F: decoding the rule from the latent code",
    shows="F1 of logistic regressions, trained on codes of training tasks, that predict the rule "
    "of unseen tasks, beside what else the rule can be read off.",
    sweeps=method_sweeps("sraven", RECOMMENDED),
    measurement=on("sraven", decoding),
    figure=_figure,
    claims=_claims,
)

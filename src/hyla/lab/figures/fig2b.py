"""Figure 2B: the terms of a function can be decoded from the code of its query."""

from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict, percent
from hyla.lab.drawing import Figure
from hyla.lab.experiment import Experiment
from hyla.lab.latent_measurements import decoding, method_sweeps, on
from hyla.lab.latent_panels import controls_by_layer, f1, f1_by_layer, methods_in, rows_of
from hyla.lab.results import Results

_UNSEEN = "ood_fixed_context"
_CONTROLS = ("shuffled labels", "untrained network")


def _figure(results: Results) -> Figure | None:
    codes = [f1_by_layer(results, label, _UNSEEN) for label in ("term 1", "term 2", "terms")]
    controls = [controls_by_layer(results, "terms", _UNSEEN, "hyla")]
    panels = [[panel for panel in row if panel is not None] for row in (codes, controls)]
    note = (
        "Mean F1 over the classes. `terms` asks of each term whether the function has it; in "
        "`term 1` and `term 2` the terms are in ascending order, as the authors label them."
    )
    drawn = [row for row in panels if row]
    return Figure(panels=drawn, note=note) if drawn else None


def _verdicts(results: Results) -> list[Verdict]:
    verdicts = []
    for method in methods_in(rows_of(results, predictor="code")):
        layers = {row["layer"] for row in rows_of(results, predictor="code", attention=method)}
        scores = {
            layer: score
            for layer in layers
            if (score := f1(results, "terms", _UNSEEN, method, "code", layer)) is not None
        }
        best = max(scores, key=lambda layer: scores[layer].mean)
        controls = {
            name: score
            for name in _CONTROLS
            if (score := f1(results, "terms", _UNSEEN, method, name, best)) is not None
        }
        lead = min(scores[best].mean - score.mean for score in controls.values())
        status = REPRODUCED if lead > 0.1 else PARTLY if lead > 0 else NOT
        numbers = ", ".join(f"{name} {percent(score)}" for name, score in controls.items())
        verdicts.append(
            Verdict(
                claim=f"The latent code of the query token is predictive of the terms ({method}).",
                status=status,
                number=f"F1 on unseen functions, layer {best + 1}: code {percent(scores[best])}; "
                f"{numbers} (reproduced: 10 above both controls)",
            )
        )
    return verdicts


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

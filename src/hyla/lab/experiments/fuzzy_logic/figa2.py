"""Figure A2: Figure 2D for all layers."""

from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import codes_figure

_COLOURS = {
    "target": "target value",
    "function": "function",
    "term 1": "term 1",
    "term 2": "term 2",
}


EXPERIMENT = Experiment(
    name="figA2",
    title="Figure A2: latent codes on fuzzy logic, all layers",
    shows="t-SNE of the codes of the query token in every layer, by target (A), function (B), "
    "first (C) and second term (D).",
    sweeps=method_sweeps("fuzzy"),
    measurement=on("fuzzy", geometry),
    figure=codes_figure(
        _COLOURS,
        all_layers=True,
        note="All functions are asked at one query point. In the first layer a query that attends "
        "to itself knows nothing else, so that without a softmax over the context all codes are "
        "one.",
    ),
)

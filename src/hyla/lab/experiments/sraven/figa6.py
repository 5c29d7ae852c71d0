"""Figure A6: codes on SRAVEN in all layers."""

from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.clusters import target_fades
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import codes_figure

EXPERIMENT = Experiment(
    name="figA6",
    title="Figure A6: latent codes on SRAVEN, all layers",
    shows="t-SNE of the codes for the last query token, by target value (A) and by rule (B).",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", geometry),
    figure=codes_figure(
        {"target": "target value", "rule": "rule"},
        all_layers=True,
        note="The paper's models saw 40 M instances; these are those of Table A1.",
    ),
    claims=target_fades,
)

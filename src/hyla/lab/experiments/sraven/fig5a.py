"""Figure 5A: codes of SRAVEN's last layer, by the value to be predicted."""

from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import codes_figure

EXPERIMENT = Experiment(
    name="fig5a",
    title="Figure 5A: latent codes on SRAVEN by target value",
    shows="t-SNE of the final layer's codes for the last query token, coloured by the magnitude of "
    "the target.",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", geometry),
    figure=codes_figure({"target": "target value"}, all_layers=False),
)

"""Figure 5A: codes of SRAVEN's last layer, by the value to be predicted."""

from hyla.figures.drawing import Figure
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import figure_of_codes
from hyla.results.tables import Results


def _figure(results: Results) -> Figure | None:
    return figure_of_codes(results, {"target": "target value"}, all_layers=False)


EXPERIMENT = Experiment(
    name="fig5a",
    title="Figure 5A: latent codes on SRAVEN by target value",
    shows="t-SNE of the final layer's codes for the last query token, coloured by the magnitude of "
    "the target.",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", geometry),
    figure=_figure,
)

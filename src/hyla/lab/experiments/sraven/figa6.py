"""Figure A6: codes on SRAVEN in all layers."""

from hyla.figures.drawing import Figure
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.clusters import target_fades
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import figure_of_codes
from hyla.results.tables import Results


def _figure(results: Results) -> Figure | None:
    colours = {"target": "target value", "rule": "rule"}
    note = "The paper's models saw 40 M instances; these are those of Table A1."
    return figure_of_codes(results, colours, all_layers=True, note=note)


EXPERIMENT = Experiment(
    name="figA6",
    title="Figure A6: latent codes on SRAVEN, all layers",
    shows="t-SNE of the codes for the last query token, by target value (A) and by rule (B).",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", geometry),
    figure=_figure,
    claims=target_fades,
)

"""Figure A7: codes of a deep softmax transformer."""

from typing import Any

from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.clusters import target_fades
from hyla.lab.experiments.shared.latent_measurements import geometry, on
from hyla.lab.experiments.shared.latent_panels import codes_figure
from hyla.lab.grids import sweep


def _sweeps(scale: str) -> list[dict[str, Any]]:
    depth, steps = {"smoke": (2, 30), "laptop": (4, 3000), "paper": (16, 312_500)}[scale]
    grid = {"model.attention": ["softmax"], "model.num_layers": [depth], "steps": [steps]}
    return [sweep("sraven", scale, grid=grid)]


EXPERIMENT = Experiment(
    name="figA7",
    title="Figure A7: latent codes of a deep softmax transformer on SRAVEN",
    shows="t-SNE of the codes in each layer of the deepest softmax transformer of Figure 4B, by "
    "rule (A) and by target value (B).",
    sweeps=_sweeps,
    measurement=on("sraven-deep", geometry),
    figure=codes_figure({"rule": "rule", "target": "target value"}, all_layers=True),
    claims=target_fades,
)

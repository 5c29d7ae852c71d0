"""Figure A4: the training loss behind Figure 4."""

import dataclasses
from typing import Any

from hyla.figures.drawing import Figure
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.scaling import panels
from hyla.lab.grids import scaling
from hyla.results.tables import Results, where
from hyla.training import load_preset


def _sweeps(scale: str) -> list[dict[str, Any]]:
    return [*scaling(scale, "model.width_factor"), *scaling(scale, "model.num_layers")]


def _figure(results: Results) -> Figure | None:
    depth = load_preset("sraven", results.conditions.scale)["model"]["num_layers"]
    rows = []
    for title, size, base in (
        ("A: width", "model.width_factor", {"model.num_layers": depth}),
        ("B: depth", "model.num_layers", {"model.width_factor": 1}),
    ):
        own = dataclasses.replace(results, cells=where(results.cells, **base))
        rows.append(panels(own, size, title, "train/loss", "training cross-entropy"))
    drawn = [row for row in rows if row]
    return Figure(panels=drawn) if drawn else None


EXPERIMENT = Experiment(
    name="figA4",
    title="Figure A4: training loss when scaling data and model size on SRAVEN",
    shows="The training loss of the models of Figure 4, for different widths (A) and depths (B).",
    sweeps=_sweeps,
    figure=_figure,
)

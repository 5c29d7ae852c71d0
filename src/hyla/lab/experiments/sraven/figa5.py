"""Figure A5: fewer rule combinations to learn from."""

from typing import Any

from hyla.figures.drawing import Figure
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, lines_by_method
from hyla.lab.grids import METHODS, sweep
from hyla.results.tables import Results


def _sweeps(scale: str) -> list[dict[str, Any]]:
    fractions = [0.25, 0.5] if scale == "smoke" else [0.25, 0.5, 0.75]
    grid = {"task.held_out_fraction": fractions, "model.attention": METHODS}
    return [sweep("sraven", scale, grid=grid)]


def _figure(results: Results) -> Figure | None:
    if not results.cells:
        return None
    panel = lines_by_method(
        results.cells,
        x=at("task__held_out_fraction"),
        metric="ood/accuracy",
        title="share of rule combinations held out",
        x_label="held-out fraction",
        y_label="OOD accuracy",
        y_range=(0, 1),
    )
    note = "The paper's figure does not print its fractions; these are ours."
    return Figure(panels=[[panel]], note=note)


EXPERIMENT = Experiment(
    name="figA5",
    title="Figure A5: varying the fraction of OOD tasks on SRAVEN",
    shows="OOD accuracy as more rule combinations are held out from training.",
    sweeps=_sweeps,
    figure=_figure,
)

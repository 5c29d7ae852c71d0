"""Figure A5: fewer rule combinations to learn from."""

from hyla.figures.drawing import Figure
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, lines_by_method
from hyla.lab.grids import methods_over
from hyla.results.tables import Results

_QUARTERS = [0.25, 0.5, 0.75]
_FRACTIONS = {"smoke": _QUARTERS[:2], "laptop": _QUARTERS, "paper": _QUARTERS}


def _figure(results: Results) -> Figure | None:
    if not results.cells:
        return None
    panel = lines_by_method(
        results.cells,
        x=at("task__held_out_fraction"),
        title="share of rule combinations held out",
        x_label="held-out fraction",
    )
    note = "The paper's figure does not print its fractions; these are ours."
    return Figure(panels=[[panel]], note=note)


EXPERIMENT = Experiment(
    name="figA5",
    title="Figure A5: varying the fraction of OOD tasks on SRAVEN",
    shows="OOD accuracy as more rule combinations are held out from training.",
    sweeps=methods_over("sraven", "task.held_out_fraction", _FRACTIONS),
    figure=_figure,
)

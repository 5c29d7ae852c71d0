"""Beyond the paper: SRAVEN without the instances that have several answers."""

from typing import Any

from hyla.lab.claims import Claim
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import label_of
from hyla.lab.experiments.shared.variants import hyla_ahead, variant_figure, variant_table
from hyla.lab.grids import METHODS, sweep
from hyla.results.tables import Cell, Results


def _sweeps(scale: str) -> list[dict[str, Any]]:
    grid = {"task.unambiguous": [False, True], "model.attention": METHODS}
    return [sweep("sraven", scale, grid=grid)]


def _name(cell: Cell) -> str:
    kind = "one answer each" if cell.get("task__unambiguous") else "as in the paper"
    return f"{label_of(cell.config.model.attention)}, {kind}"


def _claims(results: Results) -> list[Claim]:
    text = "HYLA is ahead on SRAVEN also where every instance has one answer."
    return hyla_ahead(text, results, task__unambiguous=True)


EXPERIMENT = Experiment(
    name="unambiguous",
    title="Beyond the paper: SRAVEN with one answer per instance",
    shows="A quarter of SRAVEN's instances have several answers by the paper's own definition. "
    "Here models are trained and scored on instances that have one.",
    sweeps=_sweeps,
    figure=lambda results: variant_figure(results, _name),
    table=lambda results: variant_table(results, _name),
    claims=_claims,
)

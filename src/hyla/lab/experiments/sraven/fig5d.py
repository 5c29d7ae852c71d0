"""Figure 5D: the number of features sets the difficulty of SRAVEN."""

import dataclasses
from itertools import pairwise
from typing import Any

from hyla.figures.drawing import Figure, Series
from hyla.lab.claims import Verdict, percent, share
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, lines_by_method
from hyla.lab.grids import METHODS, sweep
from hyla.results.tables import Results, where


def _sweeps(scale: str) -> list[dict[str, Any]]:
    features = {"smoke": [2, 3], "laptop": [2, 3], "paper": [4, 2, 3, 5]}[scale]
    return [
        sweep("sraven", scale, grid={"task.num_features": features, "model.attention": METHODS})
    ]


def _figure(results: Results) -> Figure | None:
    if not results.cells:
        return None
    panel = lines_by_method(
        results.cells,
        x=at("task__num_features"),
        metric="ood/accuracy",
        title="number of features",
        x_label="features M",
        y_label="OOD accuracy",
        y_range=(0, 1),
    )
    by_size = {cell.get("task__num_features"): results.ceiling(cell) for cell in results.cells}
    ceilings = [by_size[int(x)] for x in panel.x if by_size.get(int(x)) is not None]
    if len(ceilings) == len(panel.x):
        best = Series(
            name="best possible",
            y=[ceiling.mean for ceiling in ceilings if ceiling is not None],
            colour="#666666",
            dashed=True,
        )
        panel = dataclasses.replace(panel, series=[*panel.series, best])
    note = "The paper's figure does not print its values of M; these are ours."
    return Figure(panels=[[panel]], note=note)


def _verdicts(results: Results) -> list[Verdict]:
    drops, texts = [], []
    for method in METHODS:
        cells = where(results.cells, model__attention=method)
        line = sorted(cells, key=lambda cell: cell.get("task__num_features"))
        scores = [(c.get("task__num_features"), c.ood) for c in line if c.ood is not None]
        drops += [b.mean <= a.mean for (_, a), (_, b) in pairwise(scores)]
        texts.append(f"{method} " + ", ".join(f"{percent(s)} (M = {m})" for m, s in scores))
    return share(
        "The difficulty of SRAVEN is controlled by the number of features M.",
        drops,
        "OOD accuracy: " + "; ".join(texts),
    )


EXPERIMENT = Experiment(
    name="fig5d",
    title="Figure 5D: OOD accuracy on SRAVEN for varying numbers of features",
    shows="The difficulty of SRAVEN can be controlled by the number of features M.",
    sweeps=_sweeps,
    figure=_figure,
    verdicts=_verdicts,
)

"""Figure 5D: the number of features sets the difficulty of SRAVEN."""

import dataclasses

from hyla.figures.drawing import LEVEL_COLOUR, Figure, Series
from hyla.lab.claims import NOTICEABLE, Claim, Size, percent
from hyla.lab.effects import difference
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, lines_by_method
from hyla.lab.grids import METHODS, methods_over
from hyla.results.tables import Results, where

_FEATURES = {"smoke": [2, 3], "laptop": [2, 3], "paper": [4, 2, 3, 5]}


def _figure(results: Results) -> Figure | None:
    if not results.cells:
        return None
    panel = lines_by_method(
        results.cells,
        x=at("task__num_features"),
        title="number of features",
        x_label="features M",
    )
    by_size = {cell.get("task__num_features"): results.ceiling(cell) for cell in results.cells}
    ceilings = [by_size[int(x)] for x in panel.x if by_size.get(int(x)) is not None]
    if len(ceilings) == len(panel.x):
        best = Series(
            name="best possible",
            y=[ceiling.mean for ceiling in ceilings if ceiling is not None],
            colour=LEVEL_COLOUR,
            dashed=True,
        )
        panel = dataclasses.replace(panel, series=[*panel.series, best])
    note = "The paper's figure does not print its values of M; these are ours."
    return Figure(panels=[[panel]], note=note)


def _claims(results: Results) -> list[Claim]:
    claims = []
    for method in METHODS:
        cells = where(results.cells, model__attention=method)
        scores = {c.get("task__num_features"): c.ood for c in cells if c.ood is not None}
        if len(scores) > 1:
            least, most = min(scores), max(scores)
            line = ", ".join(f"{percent(scores[m])} (M = {m})" for m in sorted(scores))
            claims.append(
                Claim(
                    text=f"The difficulty of SRAVEN is controlled by the number of features M "
                    f"({method}).",
                    numbers=f"OOD accuracy {line}",
                    effects=[difference(scores[least], scores[most])],
                    size=Size(least=NOTICEABLE.least, why=f"from M = {most} to {least}"),
                )
            )
    return claims


EXPERIMENT = Experiment(
    name="fig5d",
    title="Figure 5D: OOD accuracy on SRAVEN for varying numbers of features",
    shows="The difficulty of SRAVEN can be controlled by the number of features M.",
    sweeps=methods_over("sraven", "task.num_features", _FEATURES),
    figure=_figure,
    claims=_claims,
)

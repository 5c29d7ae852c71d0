"""Figure 5C: the number of heads is the size of the latent code."""

import dataclasses

from hyla.figures.drawing import Figure
from hyla.lab.claims import BY_CONSTRUCTION, Claim, ahead
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, ceiling_levels, lines_by_method
from hyla.lab.grids import METHODS, methods_over
from hyla.results.tables import Results, where

# The preset's number first, then the one without a hypernetwork: the comparison that counts.
_HEADS = {"smoke": [4, 1, 2], "laptop": [8, 1, 2, 4], "paper": [16, 1, 2, 4, 8]}


def _figure(results: Results) -> Figure | None:
    if not results.cells:
        return None
    panel = lines_by_method(
        results.cells,
        x=at("model__num_heads"),
        title="number of heads",
        x_label="heads",
        levels=ceiling_levels(results, results.cells),
    )
    note = (
        "Queries, keys and values keep their size, all heads together: fewer heads are larger, and "
        "the number of parameters stays (but for the bias tables of positions). Of a single score "
        "RMSHead leaves the sign: HYLA with one head cannot attend."
    )
    return Figure(panels=[[panel]], note=note)


def _claims(results: Results) -> list[Claim]:
    usual = _HEADS[results.conditions.scale][0]
    claims = []
    for method in METHODS:
        own = {c.get("model__num_heads"): c for c in where(results.cells, model__attention=method)}
        one, many = (own[n].ood if n in own else None for n in (1, usual))
        claims += ahead(
            "A single head, without the hypernetwork mechanism, hampers OOD generalisation "
            f"({method}).",
            (f"OOD accuracy with {usual} heads", many),
            {"one": one},
        )
    # RMSHead leaves a single score its sign: that HYLA cannot attend follows from its definition.
    return [
        dataclasses.replace(claim, untested=BY_CONSTRUCTION if "(hyla)" in claim.text else "")
        for claim in claims
    ]


EXPERIMENT = Experiment(
    name="fig5c",
    title="Figure 5C: OOD accuracy on SRAVEN for varying numbers of heads",
    shows="With one head the code can only rescale the one value projection: the hypernetwork "
    "mechanism is absent, and generalisation suffers.",
    sweeps=methods_over("sraven", "model.num_heads", _HEADS),
    figure=_figure,
    claims=_claims,
)

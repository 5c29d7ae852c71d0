"""Figure 5E: which rules share a code."""

import statistics

from hyla.figures.drawing import Figure
from hyla.lab.claims import PLAIN, Claim, Size
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.code_panels import matrix
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import last_layer, lead, rows_of, seeds_in
from hyla.results.runs import Row
from hyla.results.tables import Results

_RELATED = {"addition", "subtraction"}
# "Very similar" is the paper's word; this is ours for it.
_VERY_SIMILAR = 0.8


def final_similarities(results: Results, method: str) -> list[Row]:
    """Return the similarities of the mean codes in the last layer, of all seeds."""
    rows = rows_of(results, what="similarity", attention=method)
    final = last_layer(rows) if rows else None
    return [row for row in rows if row["layer"] == final]


def _figure(results: Results) -> Figure | None:
    rows = final_similarities(results, "hyla")
    if not rows:
        return None
    panel = matrix(
        rows,
        row="first",
        column="second",
        value="similarity",
        title="HYLA, last layer",
        label="cosine similarity",
    )
    return Figure(panels=[[panel]], note=f"Mean over {seeds_in(rows)}.")


def _claims(results: Results) -> list[Claim]:
    related: dict[int, float] = {}
    others: dict[int, list[float]] = {}
    for row in final_similarities(results, "hyla"):
        if {row["first"], row["second"]} == _RELATED:
            related[row["seed"]] = row["similarity"]
        elif row["first"] < row["second"]:
            others.setdefault(row["seed"], []).append(row["similarity"])
    seeds = sorted(related.keys() & others)
    if not seeds:
        return []
    usual = {seed: statistics.quantiles(others[seed], n=4)[2] for seed in seeds}
    mean = statistics.fmean(related[seed] for seed in seeds)
    return [
        Claim(
            text="Sum and difference are implemented with a very similar latent code.",
            numbers=f"cosine similarity {mean:.2f}; three quarters of the other pairs of rules are "
            f"below {statistics.fmean(usual.values()):.2f}",
            effects=[lead(related, usual)],
            size=Size(least=_VERY_SIMILAR, of="a similarity of", why="seed by seed"),
            sized=mean,
            unit=PLAIN,
        )
    ]


EXPERIMENT = Experiment(
    name="fig5e",
    title="Figure 5E: similarity of the rules' codes",
    shows="Cosine similarity between the average codes of the rules for HYLA: related rules, such "
    "as sum and difference, have similar codes.",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", geometry),
    figure=_figure,
    claims=_claims,
)

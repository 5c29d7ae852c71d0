"""Beyond the paper: does the code cause the operation? Give a network another rule's code."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from hyla.attention import RECOMMENDED
from hyla.figures.drawing import Figure, Table
from hyla.lab.claims import CANNOT_BE_TOLD, Claim, Size, percent
from hyla.lab.effects import effect
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.code_panels import chosen, matrix
from hyla.lab.experiments.shared.latent_measurements import (
    SWAPPED_CODES,
    method_sweeps,
    on,
    swapping,
)
from hyla.lab.experiments.shared.latent_panels import methods_in, rows_of, seeds_in
from hyla.lab.experiments.shared.panels import label_of
from hyla.latents.measures.confidence import wilson_interval
from hyla.results.runs import Row
from hyla.results.selection import Estimate, estimate_of
from hyla.results.tables import Results

# To each code that is put in, the control: as likely by its size and values, but meaningless.
_CONTROLS = {
    "donor, same operands": "donor, same operands, permuted heads",
    "donor": "permuted heads",
}
_COPIES = "donor, same operands"
"""The code with which following the rule and copying the donor's answer are the same."""
_SAME_ANSWER = (
    "; with the same operands that is also the donor's own answer, which a code may carry"
)
_CLEARLY = 0.1
_FEWEST = 10
"""Swaps of one seed whose rate is shown in the matrix."""


def _figure(results: Results) -> Figure | None:
    measured = rows_of(results, what="matrix")
    shown = [row for row in measured if row["instances"] >= _FEWEST]
    panels = [
        [
            matrix(
                own,
                row="recipient",
                column="donor",
                value="donor_rate",
                title=f"{label_of(method)}: {code}",
                label="follows the donor's rule",
                value_range=(0, 1),
            )
            for method in methods_in(measured)
            if (own := chosen(shown, attention=method, code=code))
        ]
        for code in SWAPPED_CODES
    ]
    note = (
        "Rows: the rule that gives the instance its answer; columns: the rule whose code is put "
        "in, in all layers at once, from another instance: one that applies that rule to the same "
        "values (above), or any (below). A cell is the share of answers that the donor's rule "
        "prescribes for the recipient's own inputs, averaged over those of "
        f"{seeds_in(measured)} that have at least {_FEWEST} such swaps. On the diagonal there is "
        "nothing to follow."
    )
    drawn = [row for row in panels if row]
    return Figure(panels=drawn, note=note) if drawn else None


def _in_all_layers(results: Results, method: str, code: str) -> list[Row]:
    """Return the rows in which this code was put into all layers (or into none: `own`)."""
    rows = rows_of(results, what="table", attention=method, code=code)
    spans = {(row["first_layer"], row["last_layer"]) for row in rows} - {(None, None)}
    widest = max(spans, key=lambda span: span[1] - span[0], default=(None, None))
    return [row for row in rows if (row["first_layer"], row["last_layer"]) == widest]


def _counts(rows: Sequence[Row], name: str) -> dict[int, Counter[str]]:
    """Return hits and swaps of each seed, where the rate was measured."""
    counts: dict[int, Counter[str]] = {}
    for row in rows:
        if row.get(f"{name}_rate") is not None and row["instances"]:
            hits = round(row[f"{name}_rate"] * row["instances"])
            counts.setdefault(row["seed"], Counter()).update(hits=hits, swaps=row["instances"])
    return counts


def _counting_error(counts: Mapping[int, Counter[str]]) -> float:
    pooled = sum(counts.values(), Counter())
    return wilson_interval(pooled["hits"], pooled["swaps"]).standard_error


def _rates(counts: Mapping[int, Counter[str]]) -> dict[int, float]:
    return {seed: count["hits"] / count["swaps"] for seed, count in counts.items()}


def _rate(rows: Sequence[Row], name: str) -> Estimate | None:
    """Return the mean over seeds of the rate over all swaps of a seed.

    Its error is that over seeds or that of counting, whichever is larger: swaps are few, and a
    network may follow as seldom in every seed.
    """
    counts = _counts(rows, name)
    if not counts:
        return None
    return _at_least(estimate_of(list(_rates(counts).values())), _counting_error(counts))


def _at_least(mean: Estimate, error: float) -> Estimate:
    # In this order: the error over a single seed is NaN.
    return dataclasses.replace(mean, standard_error=max(error, mean.standard_error))


def _table(results: Results) -> Table | None:
    measured = rows_of(results, what="table")
    rates = {
        "donor": "follows the donor's rule (%)",
        "stay": "stays (%)",
        "copy": "gives the donor's own answer (%)",
    }
    rows = []
    for method in methods_in(measured):
        for code in dict.fromkeys(row["code"] for row in measured):
            own = _in_all_layers(results, method, code)
            means = [_rate(own, rate) for rate in rates]
            if means[0] is not None:
                seeds, swaps = {row["seed"] for row in own}, sum(row["instances"] for row in own)
                counts = str(len(seeds)), str(swaps)
                rows.append([label_of(method), code, *map(percent, means), *counts])
    columns = ["attention", "code put in", *rates.values(), "seeds", "swaps"]
    note = "Mean ± standard error: over the seeds, or of the count where that is larger."
    return Table(columns=columns, rows=rows, note=note) if rows else None


def _claims(results: Results) -> list[Claim]:
    claims = []
    for method in methods_in(rows_of(results, what="table")):
        for code, control in _CONTROLS.items():
            follows, by_chance = (
                _counts(_in_all_layers(results, method, kind), "donor") for kind in (code, control)
            )
            seeds = sorted(follows.keys() & by_chance)
            if not seeds:
                continue
            own, other = _rates(follows), _rates(by_chance)
            lead = _at_least(
                estimate_of([own[seed] - other[seed] for seed in seeds]),
                math.hypot(_counting_error(follows), _counting_error(by_chance)),
            )
            shares = (100 * statistics.fmean(rates.values()) for rates in (own, other))
            claims.append(
                Claim(
                    text="The latent code specifies the operation: with another rule's code "
                    f"({code}) the network follows that rule ({method}).",
                    numbers="{:.1f} % follow it, {:.1f} % with its heads permuted".format(*shares)
                    + (_SAME_ANSWER if code == _COPIES else ""),
                    effects=[effect((1, lead))],
                    size=Size(least=_CLEARLY, why="seed by seed"),
                    untested=CANNOT_BE_TOLD if code == _COPIES else "",
                )
            )
    return claims


EXPERIMENT = Experiment(
    name="codeswap",
    title="Beyond the paper: swapping codes between rules",
    shows="The paper shows that codes predict the operation. Here they are exchanged: if the code "
    "specifies the operation, a network given another rule's code follows that rule.",
    sweeps=method_sweeps("sraven", RECOMMENDED),
    measurement=on("sraven", swapping),
    figure=_figure,
    table=_table,
    claims=_claims,
)

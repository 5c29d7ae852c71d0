"""Beyond the paper: does the code cause the operation? Give a network another rule's code."""

from collections import Counter
from collections.abc import Sequence

from hyla.figures.drawing import Figure, Table
from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict, error_of, percent
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.code_panels import matrix
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
from hyla.results.selection import Estimate, estimate
from hyla.results.tables import Results

# To each code that is put in, the control: as likely by its size and values, but meaningless.
_CONTROLS = {
    "donor, same operands": "donor, same operands, permuted heads",
    "donor": "permuted heads",
}
_CLEARLY = 0.1
_FEWEST = 10
"""Swaps of one seed whose rate is shown in the matrix."""


def _figure(results: Results) -> Figure | None:
    measured = rows_of(results, what="matrix")
    panels = []
    for code in SWAPPED_CODES:
        row = []
        for method in methods_in(measured):
            row.append(
                matrix(
                    [
                        r
                        for r in measured
                        if (r["attention"], r["code"]) == (method, code)
                        and r["instances"] >= _FEWEST
                    ],
                    row="recipient",
                    column="donor",
                    value="donor_rate",
                    title=f"{label_of(method)}: {code}",
                    label="follows the donor's rule",
                    value_range=(0, 1),
                )
            )
        panels.append([panel for panel in row if panel.rows])
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


def _rate(rows: Sequence[Row], name: str) -> Estimate | None:
    """Return the mean over seeds of the rate over all swaps of a seed.

    Its error is that over seeds or that of counting, whichever is larger: swaps are few, and a
    network may follow as seldom in every seed.
    """
    known = [row for row in rows if row.get(f"{name}_rate") is not None and row["instances"]]
    if not known:
        return None
    counts: dict[int, Counter[str]] = {}
    for row in known:
        hits = round(row[f"{name}_rate"] * row["instances"])
        counts.setdefault(row["seed"], Counter()).update(hits=hits, swaps=row["instances"])
    mean = estimate([{"rate": count["hits"] / count["swaps"]} for count in counts.values()], "rate")
    pooled = sum(counts.values(), Counter())
    counting = wilson_interval(pooled["hits"], pooled["swaps"]).standard_error
    return Estimate(mean.mean, max(counting, mean.standard_error))  # the latter NaN for one seed


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
                texts = ["" if mean is None else percent(mean) for mean in means]
                rows.append([label_of(method), code, *texts, str(len(seeds)), str(swaps)])
    columns = ["attention", "code put in", *rates.values(), "seeds", "swaps"]
    note = "Mean ± standard error: over the seeds, or of the count where that is larger."
    return Table(columns=columns, rows=rows, note=note) if rows else None


def _verdicts(results: Results) -> list[Verdict]:
    verdicts = []
    for method in methods_in(rows_of(results, what="table")):
        for code, control in _CONTROLS.items():
            follows, by_chance = (
                _rate(_in_all_layers(results, method, kind), "donor") for kind in (code, control)
            )
            if follows is None or by_chance is None:
                continue
            lead = follows.mean - by_chance.mean
            more = lead > error_of(follows, by_chance)
            verdicts.append(
                Verdict(
                    claim="The latent code specifies the operation: with another rule's code "
                    f"({code}) the network follows that rule ({method}).",
                    status=REPRODUCED if more and lead > _CLEARLY else PARTLY if more else NOT,
                    number=f"{percent(follows)} % follow it, {percent(by_chance)} % with its heads "
                    f"permuted (more by the error counts as partly, {100 * _CLEARLY:.0f} more as "
                    "reproduced)",
                )
            )
    return verdicts


EXPERIMENT = Experiment(
    name="codeswap",
    title="Beyond the paper: swapping codes between rules",
    shows="The paper shows that codes predict the operation. Here they are exchanged: if the code "
    "specifies the operation, a network given another rule's code follows that rule.",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", swapping),
    figure=_figure,
    table=_table,
    verdicts=_verdicts,
)

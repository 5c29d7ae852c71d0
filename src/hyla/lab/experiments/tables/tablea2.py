"""Table A2: how often SRAVEN has several answers."""

from hyla.figures.drawing import Table
from hyla.lab.claims import Claim, Size
from hyla.lab.effects import alike, effect
from hyla.lab.experiment import Experiment
from hyla.lab.measuring import Measurement, Measuring
from hyla.lab.paper import TABLE_A2
from hyla.latents.measures.confidence import wilson_interval
from hyla.results.runs import Row
from hyla.results.selection import Estimate
from hyla.results.tables import Results
from hyla.tasks.sraven import SravenConfig, audit

# "Negligible" is the paper's word, with its number; "as printed" is ours: within a point.
_NEGLIGIBLE = 0.005
_ALIKE = 0.01
_CRITERIA = {
    "ambiguous_by_authors": "by the authors' released check",
    "ambiguous_by_definition": "by the paper's definition",
}


def _measure(measuring: Measuring) -> list[Row]:
    instances = measuring.size(smoke=256, laptop=4096, paper=2**17)
    rows = []
    for values in TABLE_A2:
        config = SravenConfig(num_values=values)
        found = audit(config, instances, device=measuring.device)
        [train] = [row for row in found if row["split"] == "train"]
        rows.append({"num_features": 4, "num_values": values, **train})
    return rows


def _estimate(row: Row, criterion: str) -> Estimate:
    """Return a fraction of the instances; its error, by Wilson's interval, is not 0 if it is."""
    trials = row["instances"]
    found = wilson_interval(round(row[criterion] * trials), trials)
    return Estimate(found.value, found.standard_error, trials)


def _table(results: Results) -> Table | None:
    rows = [
        [
            row["num_features"],
            row["num_values"],
            *(_text(_estimate(row, criterion)) for criterion in _CRITERIA),
            _text(TABLE_A2[row["num_values"]]),
            _text(Estimate(row["ceiling"], row["ceiling_se"])),
            f"{row['instances']:,}",
        ]
        for row in results.rows
    ]
    columns = ["M", "K", *_CRITERIA.values(), "paper", "best possible accuracy", "instances"]
    note = (
        "Fractions ± standard error, over permuted training instances (the paper: 4,096). By the "
        "paper's definition an instance is ambiguous if any other reading prescribes another "
        "answer; the authors' check counts it only if every feature has a conflicting reading."
    )
    return Table(columns=columns, rows=rows, note=note) if rows else None


def _text(value: Estimate) -> str:
    digits = 4 if value.standard_error > 5e-5 else 6
    return f"{value.mean:.{digits}f} ± {value.standard_error:.{digits}f}"


def _claims(results: Results) -> list[Claim]:
    found = []
    authors = {row["num_values"]: _estimate(row, "ambiguous_by_authors") for row in results.rows}
    if authors:
        found.append(
            Claim(
                text="The printed fractions of ambiguous examples.",
                numbers="by the authors' check: "
                + ", ".join(f"K = {values}: {_text(ours)}" for values, ours in authors.items()),
                effects=[alike(ours, TABLE_A2[k], within=_ALIKE) for k, ours in authors.items()],
                size=Size(least=0, why=f"{100 * _ALIKE:g} point less the distance from the paper"),
            )
        )
    ours = {row["num_values"]: _estimate(row, "ambiguous_by_definition") for row in results.rows}
    if 8 in ours:
        found.append(
            Claim(
                text="In the setting used (M = 4, K = 8) ambiguity is negligible: less than half a "
                "percent.",
                numbers=f"{100 * ours[8].mean:.1f} ± {100 * ours[8].standard_error:.1f} % by the "
                "paper's own definition",
                effects=[effect((-1, ours[8]), above=-_NEGLIGIBLE)],
                size=Size(least=0, why="half a percent less the share"),
            )
        )
    return found


EXPERIMENT = Experiment(
    name="tableA2",
    title="Table A2: ambiguous examples of SRAVEN",
    shows="The share of instances whose context also fits rules that prescribe another answer.",
    measurement=Measurement(name="tableA2", measure=_measure),
    table=_table,
    claims=_claims,
)

"""Figure A9: how many tasks and instances SRAVEN has."""

import math

from hyla.figures.drawing import PALETTE, Figure, Lines, Series
from hyla.lab.claims import Claim, constructed
from hyla.lab.experiment import Experiment
from hyla.lab.measuring import Measurement, Measuring
from hyla.results.runs import Row
from hyla.results.tables import Results
from hyla.tasks.sraven import SravenConfig
from hyla.tasks.sraven.counts import num_instances, num_tasks, num_tasks_in_paper

_FEATURES = range(1, 9)
_VALUES = (4, 8, 16)
_TRAINED_ON = 40_000_000


def _measure(measuring: Measuring) -> list[Row]:
    rules = len(SravenConfig().rules)
    rows: list[Row] = []
    for features in _FEATURES:
        size = {"num_rules": rules, "num_features": features, "grid_size": 3}
        rows.append(_row("tasks", features, None, num_tasks(**size)))
        rows.append(_row("tasks, the paper's formula", features, None, num_tasks_in_paper(**size)))
        for values in _VALUES:
            count = num_instances(num_features=features, num_values=values, grid_size=3)
            rows.append(_row("instances", features, values, count))
    return rows


def _row(what: str, features: int, values: int | None, count: int) -> Row:
    # As a power: the numbers themselves are longer than a float is exact.
    power = math.log10(count) if count > 0 else None
    return {"what": what, "num_features": features, "num_values": values, "log10": power}


def _figure(results: Results) -> Figure | None:
    if not results.rows:
        return None
    features = sorted({row["num_features"] for row in results.rows})

    def line(name: str, colour: str, what: str, values: int | None = None) -> Series:
        found = {
            row["num_features"]: row["log10"]
            for row in results.rows
            if row["what"] == what and row["num_values"] == values
        }
        powers = [math.nan if found.get(f) is None else found[f] for f in features]
        return Series(name=name, y=powers, colour=colour)

    tasks = [
        line("by enumeration", PALETTE[0], "tasks"),
        line("the paper's formula", PALETTE[1], "tasks, the paper's formula"),
    ]
    instances = [
        line(f"K = {values}", PALETTE[2 + i], "instances", values)
        for i, values in enumerate(_VALUES)
    ]
    shared = {"x_label": "features M", "y_label": "power of ten", "x": features}
    return Figure(
        panels=[
            [
                Lines(title="A: possible tasks", series=tasks, **shared),
                Lines(title="B: possible instances", series=instances, **shared),
            ]
        ],
        note="The paper's formula counts (M!)² − M ways of lining up the columns; enumeration "
        "gives (M!)². See docs/sraven.md.",
    )


def _claims(results: Results) -> list[Claim]:
    powers = [
        row["log10"]
        for row in results.rows
        if row["what"] == "instances" and (row["num_features"], row["num_values"]) == (4, 8)
    ]
    claim = "There are orders of magnitude more instances than training examples (M = 4, K = 8)."
    numbers = "10^{:.1f} instances, at most " + f"{_TRAINED_ON:,} trained on"
    return [constructed(claim, numbers.format(power)) for power in powers]


EXPERIMENT = Experiment(
    name="figA9",
    title="Figure A9: the number of SRAVEN tasks and instances",
    shows="How the numbers of tasks (A) and of instances (B) grow with features and values.",
    measurement=Measurement(name="figA9", measure=_measure),
    figure=_figure,
    claims=_claims,
)

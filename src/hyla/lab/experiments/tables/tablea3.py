"""Table A3: are our presets the paper's?"""

from typing import Any

from hyla.figures.drawing import Table
from hyla.lab.claims import Claim, constructed
from hyla.lab.experiment import Experiment
from hyla.lab.grids import members, scaling
from hyla.lab.measuring import Measurement, Measuring
from hyla.lab.paper import TABLE_A3
from hyla.results.runs import Row
from hyla.results.tables import Results
from hyla.training import load_preset

_TASKS = ("fuzzy", "sraven")
# What the paper calls the settings of our models.
_MODEL = {
    "num_layers": "num_layers",
    "width_factor": "width_factor",
    "emb_dim": "embed_dim",
    "kqv_dim": "qk_dim",
    "mlp_dim": "mlp_dim",
    "num_heads": "num_heads",
}


def _ours(task: str, name: str) -> Any:
    preset = load_preset(task, "paper")
    searched = members(task, "paper", seeds=None, search=True)
    if f"members.{name}" in searched:
        return sorted(searched[f"members.{name}"])
    if name in preset["members"]:
        [value] = preset["members"][name]
        return value
    if task == "sraven" and name in ("num_layers", "width_factor"):
        [tree] = scaling("paper", f"model.{name}")
        return tree["grid"][f"model.{name}"]
    return preset[name] if name in preset else preset["model"][_MODEL[name]]


def _measure(measuring: Measuring) -> list[Row]:
    return [
        {"parameter": name, "task": task, "ours": _text(_ours(task, name)), "paper": _text(paper)}
        for name, columns in TABLE_A3.items()
        for task, paper in columns.items()
    ]


def _text(value: Any) -> str:
    return " ".join(f"{each:g}" for each in (value if isinstance(value, list) else [value]))


def _table(results: Results) -> Table | None:
    by_place = {(row["parameter"], row["task"]): row for row in results.rows}
    if not by_place:
        return None
    rows = [
        [name, *(by_place[name, task][who] for task in _TASKS for who in ("ours", "paper"))]
        for name in TABLE_A3
    ]
    columns = ["parameter", "fuzzy logic", "paper", "SRAVEN", "paper"]
    note = "Several values were searched. Language modelling has a preset of its own (fig6)."
    return Table(columns=columns, rows=rows, note=note)


def _claims(results: Results) -> list[Claim]:
    same = [str(row["ours"]) == str(row["paper"]) for row in results.rows]
    numbers = f"{sum(same)} of {len(same)} settings are the paper's"
    return [constructed("The hyper-parameters and the grid.", numbers)] if same else []


EXPERIMENT = Experiment(
    name="tableA3",
    title="Table A3: hyper-parameters",
    shows="What the presets at paper scale train with, and the grid that is searched.",
    measurement=Measurement(name="tableA3", measure=_measure),
    table=_table,
    claims=_claims,
)

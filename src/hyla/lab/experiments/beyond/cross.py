"""Beyond the paper: Figure 4's data, depth and width, each alone, with HYLA as recommended."""

from typing import Any

from hyla.attention import RECOMMENDED
from hyla.figures.drawing import Figure, Table
from hyla.lab.claims import POINTS, Claim, Size, ahead, percent
from hyla.lab.effects import FEWEST_SEEDS, difference, effect
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import (
    at,
    ceiling_levels,
    each_seed,
    label_of,
    lines_by_method,
)
from hyla.lab.grids import sweep
from hyla.results.selection import Estimate
from hyla.results.tables import Cell, Results, where
from hyla.training import load_preset

_RIVAL = "softmax"
_METHODS = ("softmax", "hyla", RECOMMENDED, "linear")
_OURS = "HYLA as recommended"
# What is varied, beside the preset's own value, which all three lines have: the paper's cell. At
# paper scale 5, 10 and 40 M instances of its 20.
_VARIED = {
    "smoke": {"steps": [15], "model.num_layers": [2], "model.width_factor": [2]},
    "laptop": {"steps": [750, 1500], "model.num_layers": [4], "model.width_factor": [2]},
    "paper": {
        "steps": [39062, 78125, 312500],
        "model.num_layers": [8, 16],
        "model.width_factor": [2, 4],
    },
}
_AXES = {
    "steps": ("data", "training instances (millions)"),
    "model.num_layers": ("depth", "layers"),
    "model.width_factor": ("width", "width factor"),
}
_ALIKE = 0.05
"""How much less of a gain is still as much: what printed numbers may be apart in Table A1."""
_LEVEL = 0.05
"""Of the intervals in the table's note; those of verdicts depend on what else is judged."""

_Settings = dict[str, int]
"""One size, as `where` takes it."""


def _sweeps(scale: str) -> list[dict[str, Any]]:
    trees = [sweep("sraven", scale, grid={"model.attention": _METHODS})]
    for axis, values in _VARIED[scale].items():
        methods = _METHODS if axis == "steps" else _METHODS[:3]
        trees.append(sweep("sraven", scale, grid={axis: values, "model.attention": methods}))
    return trees


def _sizes(results: Results, axis: str) -> list[_Settings]:
    """Return what is on one line of the cross, from the least to the most."""
    preset = load_preset("sraven", results.conditions.scale)
    own = {"steps": preset["steps"], **preset["model"]}
    names = {key: key.rpartition(".")[2] for key in _AXES}
    sizes = []
    for value in sorted({own[names[axis]], *_VARIED[results.conditions.scale][axis]}):
        size = {key: own[name] for key, name in names.items()} | {axis: value}
        size["steps"] = max(1, size["steps"] // results.conditions.shorten)
        sizes.append(size)
    return sizes


def _instances(cell: Cell) -> float:
    """Return them in millions, rounded: 39,062 batches of 128 are 5."""
    return _millions(cell.config.steps, cell.config.batch_size)


def _millions(steps: int, batch_size: int) -> float:
    return float(f"{steps * batch_size / 1e6:.3g}")


def _figure(results: Results) -> Figure | None:
    panels = []
    for axis, (more, x_label) in _AXES.items():
        cells = [cell for size in _sizes(results, axis) for cell in where(results.cells, **size)]
        panels.append(
            lines_by_method(
                cells,
                x=_instances if axis == "steps" else at(axis),
                title=f"more {more}",
                x_label=x_label,
                levels=ceiling_levels(results, cells),
                methods=_METHODS,
            )
        )
    return Figure(panels=[panels]) if results.cells else None


def _table(results: Results) -> Table | None:
    rows = [
        [
            label_of(cell.config.model.attention),
            f"{_instances(cell):g}",
            str(cell.config.model.num_layers),
            str(cell.config.model.width_factor),
            percent(cell.ood),
            each_seed(cell),
        ]
        for cell in results.cells
        if cell.ood is not None
    ]
    columns = ["attention", *(label for _, label in _AXES.values()), "OOD (%)", "each seed"]
    return Table(columns=columns, rows=rows, note=_where_it_closes(results)) if rows else None


def _where_it_closes(results: Results) -> str:
    """Say at which sizes the lead over softmax may be none."""
    kinds: dict[str, list[str]] = {"holds 0": [], "is above 0": [], "is below 0": []}
    for name, (ours, rival) in _compared(results).items():
        lead = difference(ours, rival)
        if min(lead.counts) >= FEWEST_SEEDS:
            low, high = lead.interval(_LEVEL)
            kind = "is above 0" if low > 0 else "is below 0" if high < 0 else "holds 0"
            ends = (POINTS.text(end, sign=True) for end in (low, high))
            kinds[kind].append(f"{name} ({' to '.join(ends)})")
    found = [f"{kind} at {', '.join(names)}" for kind, names in kinds.items() if names]
    if not found:
        return f"Where {_OURS} and softmax attention meet takes {FEWEST_SEEDS} seeds of both."
    return (
        f"Where the gap closes: the {1 - _LEVEL:.0%} interval of the lead of {_OURS} over softmax "
        f"attention, in points, each size by itself, {'; it '.join(found)}."
    )


def _compared(results: Results) -> dict[str, tuple[Estimate, Estimate]]:
    """Return the recommended HYLA's score and softmax's at each size where both were measured."""
    found = {}
    for axis in _AXES:
        for size in _sizes(results, axis):
            ours, rival = _scores(results, size)
            if ours is not None and rival is not None:
                found[_name(size, results)] = ours, rival
    return found


def _scores(results: Results, size: _Settings) -> list[Estimate | None]:
    return [results.ood(model__attention=method, **size) for method in (RECOMMENDED, _RIVAL)]


def _name(size: _Settings, results: Results) -> str:
    batch = load_preset("sraven", results.conditions.scale)["batch_size"]
    instances = f"{_millions(size['steps'], batch):g} M instances"
    return f"{instances}, {size['model.num_layers']} layers, width {size['model.width_factor']}"


def _claims(results: Results) -> list[Claim]:
    gains = [claim for axis in _AXES for claim in _gains_as_much(results, axis)]
    # The paper's own cell is the least of depth and of width: it is one claim.
    ends = {
        _name(size, results): size
        for axis in _AXES
        for size in (_sizes(results, axis)[0], _sizes(results, axis)[-1])
    }
    leads = []
    for name, size in ends.items():
        ours, rival = _scores(results, size)
        leads += ahead(
            f"{_OURS} is ahead of softmax attention at {name}.",
            ("HYLA", ours),
            {"softmax": rival},
            Size(least=0),
        )
    return gains + leads


def _gains_as_much(results: Results, axis: str) -> list[Claim]:
    sizes = _sizes(results, axis)
    few, rival_few = _scores(results, sizes[0])
    many, rival_many = _scores(results, sizes[-1])
    if few is None or rival_few is None or many is None or rival_many is None:
        return []
    return [
        Claim(
            text=f"{_OURS} gains from more {_AXES[axis][0]} as much as softmax attention does.",
            numbers=f"OOD accuracy: HYLA {percent(few)} to {percent(many)}, softmax "
            f"{percent(rival_few)} to {percent(rival_many)}",
            effects=[effect((1, many), (-1, few), (-1, rival_many), (1, rival_few), above=-_ALIKE)],
            size=Size(least=0, why=f"HYLA's gain less softmax's, and {100 * _ALIKE:g} for alike"),
        )
    ]


EXPERIMENT = Experiment(
    name="cross",
    title="Beyond the paper: data, depth and width, each alone",
    shows="Figure 4 varies all at once. Here each is varied alone, through the cell that Table A1 "
    "compares in, and HYLA as recommended is beside the others: does it gain from scale as softmax "
    "attention does, and where does the gap close? Near the ceiling there is little left to gain.",
    sweeps=_sweeps,
    figure=_figure,
    table=_table,
    claims=_claims,
)

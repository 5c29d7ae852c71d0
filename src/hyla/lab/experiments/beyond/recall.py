"""Beyond the paper: associative recall, which tells kinds of attention apart on text."""

from typing import Any

from hyla.figures.drawing import Figure, Table
from hyla.lab.claims import Claim, ahead, percent
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, label_of, lines_by_method
from hyla.lab.grids import sweep
from hyla.results.tables import Results, where
from hyla.training import load_preset

_BOTH = "hyla_residual_minus_rmshead_plus_softmax.rms4"
_METHODS = ("softmax", "linear", "hyla", "hyla.expected2", _BOTH, "softmax.rms4")
# What is varied, each alone, beside the value of the preset.
_VARIED = {
    "smoke": {"task.pairs": [1], "task.length": [12], "model.width_factor": [2]},
    "laptop": {"task.pairs": [2, 8], "task.length": [48], "model.width_factor": [2]},
    "paper": {
        "task.pairs": [4, 16],
        "task.length": [128, 256],
        "model.width_factor": [2, 4],
    },
}
_AXES = {
    "task.pairs": "pairs of keys and values",
    "task.length": "tokens",
    "model.width_factor": "width factor",
}


def _sweeps(scale: str) -> list[dict[str, Any]]:
    methods = ("softmax", "hyla") if scale == "smoke" else _METHODS
    varied = ({axis: values} for axis, values in _VARIED[scale].items())
    return [
        sweep("recall", scale, grid={**axis, "model.attention": methods}) for axis in ({}, *varied)
    ]


def _at_preset(scale: str, *, but: str = "") -> dict[str, Any]:
    """Return the settings of the preset that are varied, but one, as `where` takes them."""
    preset = load_preset("recall", scale)
    fixed = [axis.split(".") for axis in _AXES if axis != but]
    return {f"{part}.{name}": preset[part].get(name, 1) for part, name in fixed}


def _figure(results: Results) -> Figure | None:
    scale = results.conditions.scale
    panels = [
        lines_by_method(
            where(results.cells, **_at_preset(scale, but=axis)),
            x=at(axis),
            metric="test/*",
            title=f"over {words}",
            x_label=words,
            y_label="values recalled",
            methods=_METHODS,
        )
        for axis, words in _AXES.items()
    ]
    return Figure(panels=[panels]) if results.cells else None


def _table(results: Results) -> Table | None:
    columns = ["attention", *(words for words in _AXES.values()), "recalled (%)"]
    rows = [
        [
            label_of(cell.config.model.attention),
            *(str(cell.get(axis)) for axis in _AXES),
            percent(cell.seen),
        ]
        for cell in results.cells
        if cell.seen is not None
    ]
    return Table(columns=columns, rows=rows) if rows else None


def _claims(results: Results) -> list[Claim]:
    cells = where(results.cells, **_at_preset(results.conditions.scale))
    recalled = {str(cell.config.model.attention): cell.seen for cell in cells}
    return [
        claim
        for leader, rival in (("softmax", "hyla"), (_BOTH, "hyla"), ("hyla.expected2", "hyla"))
        for claim in ahead(
            f"{label_of(leader)} recalls more than {label_of(rival)}.",
            (label_of(leader), recalled.get(leader)),
            {label_of(rival): recalled.get(rival)},
        )
    ]


EXPERIMENT = Experiment(
    name="recall",
    title="Beyond the paper: associative recall",
    shows="Pairs of keys and values, then keys whose values are asked for. What attention cannot "
    "recall here it is known to miss on text: how much of the gap in language is recall? "
    "Everything is new to the models but the kind of question; nothing is composed.",
    sweeps=_sweeps,
    figure=_figure,
    table=_table,
    claims=_claims,
)

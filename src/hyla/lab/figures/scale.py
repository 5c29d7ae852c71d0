"""Beyond the paper: the scale of the attention branch, and HYLA beside softmax once mended."""

from typing import Any

from hyla.lab.claims import Verdict, ahead
from hyla.lab.experiment import Experiment
from hyla.lab.grids import sweep
from hyla.lab.panels import label_of
from hyla.lab.results import Cell, Results
from hyla.lab.variants import TASKS, variant_figure, variant_table

_AS_PRINTED = ("hyla", "softmax", "linear", "hyla_minus_rmshead")
_MENDED = (
    "hyla.plain16",
    "hyla.plain32",
    "hyla.expected",
    "hyla.rms4",
    "hyla_minus_rmshead.plain16",
    "hyla_minus_rmshead.rms4",
    "hyla_residual_minus_rmshead.rms4",
    "hyla_residual_minus_rmshead_plus_softmax.rms4",
)
# The same treatment for what HYLA is compared with.
_RIVALS = ("softmax.rms4", "linear.rms4")


def _sweeps(scale: str) -> list[dict[str, Any]]:
    names = (*_AS_PRINTED, *_MENDED, *_RIVALS)
    if scale == "smoke":
        names = ("hyla", "hyla.expected", _MENDED[-1], "softmax", "softmax.rms4")
    return [sweep(task, scale, grid={"model.attention": names}) for task in TASKS]


def _name(cell: Cell) -> str:
    return label_of(cell.config.model.attention)


def _worst(cell: Cell) -> str:
    scores = [row.get(f"ood/{cell.headline}") for row in cell.picked]
    return ", ".join(f"{100 * score:.1f}" for score in scores if score is not None)


def _verdicts(results: Results) -> list[Verdict]:
    found = []
    for task, (title, _) in TASKS.items():

        def score(name: str, task: str = task):
            return results.ood(task_name=task, model__attention=name)

        rivals = {label_of(name): score(name) for name in ("softmax", "softmax.rms4")}
        for name in _MENDED:
            mine = (label_of(name), score(name))
            found += ahead(
                f"{title}: {mine[0]} generalises better than softmax attention, as it is and with "
                "its output normalised.",
                mine,
                rivals,
            )
        found += ahead(
            f"{title}: HYLA generalises better with its output scaled than as printed.",
            ("HYLA (plain16)", score("hyla.plain16")),
            {"HYLA": score("hyla")},
        )
    return found


EXPERIMENT = Experiment(
    name="scale",
    title="Beyond the paper: the scale of the attention branch",
    shows="Nothing divides HYLA's sum over the keys by their number: at the start its branch is a "
    "hundred times the residual stream that it joins. Here the output is scaled or normalised "
    "before the output projection, in HYLA and in what it is compared with.",
    sweeps=_sweeps,
    figure=lambda results: variant_figure(results, _name),
    table=lambda results: variant_table(results, _name, each_seed=_worst),
    verdicts=_verdicts,
)

"""Beyond the paper: the scale of the attention branch, and HYLA beside softmax once mended."""

import statistics
from collections.abc import Mapping
from typing import Any

from hyla.attention import RECOMMENDED
from hyla.figures.drawing import METHOD_COLOURS, PALETTE, Figure, Lines, Series
from hyla.lab.claims import Claim, ahead
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import each_seed, label_of, score_name
from hyla.lab.experiments.shared.variants import TASKS, variant_table
from hyla.lab.grids import sweep
from hyla.lab.measuring import Measurement, Measuring
from hyla.lab.methods import expand
from hyla.results.runs import Row, curve_rows, origin_of, read_runs
from hyla.results.selection import hyperparameters_of
from hyla.results.tables import MEMBER, Results
from hyla.training.identity import method_key

_AS_PRINTED = ("hyla", "softmax", "linear", "hyla_minus_rmshead")
_MENDED = (
    "hyla.plain32",
    "hyla.expected2",
    "hyla.rms4",
    "hyla_minus_rmshead.plain16",
    "hyla_minus_rmshead.rms4",
    "hyla_residual_minus_rmshead.rms4",
    "hyla_residual_minus_rmshead_plus_softmax.rms4",
)
# The same treatment for what HYLA is compared with.
_RIVALS = ("softmax.rms4", "linear.rms4")
# Whose curves are shown: all of them cannot be told apart.
_DRAWN = METHOD_COLOURS | {RECOMMENDED: PALETTE[4]}


def _sweeps(scale: str) -> list[dict[str, Any]]:
    names = (*_AS_PRINTED, *_MENDED, *_RIVALS)
    if scale == "smoke":
        names = ("hyla", "hyla.expected2", _MENDED[-1], "softmax", "softmax.rms4")
    return [sweep(task, scale, grid={"model.attention": names}) for task in TASKS]


def _score(task: str) -> str:
    return f"ood/{TASKS[task].headline}"


# --- learning curves -------------------------------------------------------------------------


def _measure(measuring: Measuring) -> list[Row]:
    """Return the evaluations of all these runs that are here: a plateau shows before the end."""
    configs = (
        method.config for tree in _sweeps(measuring.conditions.scale) for method in expand(tree)
    )
    wanted = {method_key(measuring.conditions.apply(config)) for config in configs}
    rows = []
    for run in read_runs(measuring.root):
        if run.method not in wanted:
            continue
        task, attention = run.config["task_name"], run.config["model"]["attention"]
        known = {"task_name": task, "attention": attention, "steps": run.config["steps"]}
        for row in curve_rows(run):
            score = row.get(_score(task))
            if score is not None:
                at = {name: row[name] for name in ("run", *MEMBER, "step")}
                rows.append({**known, **at, "score": score, **origin_of(run)})
    return rows


_Curves = Mapping[str, Mapping[int, Mapping[int, float]]]
"""Scores by attention, seed and step."""


def _curves(results: Results, task: str) -> _Curves:
    """Return the curves of finished models, and of those that were measured on the way."""
    found: dict[str, dict[int, dict[int, float]]] = {}
    for cell in results.cells:
        if cell.config.task_name == task:
            seeds = found.setdefault(str(cell.config.model.attention), {})
            for row in cell.curves:
                picked = hyperparameters_of(row) == hyperparameters_of(cell.picked[0])
                if picked and row.get(_score(task)) is not None:
                    seeds.setdefault(row["seed"], {})[row["step"]] = row[_score(task)]
    rows = [r for r in results.rows if r["task_name"] == task and r["attention"] not in found]
    for row in rows:
        first = next(r for r in rows if r["attention"] == row["attention"])
        if hyperparameters_of(row) == hyperparameters_of(first):  # nothing is picked before the end
            seeds = found.setdefault(row["attention"], {})
            seeds.setdefault(row["seed"], {})[row["step"]] = row["score"]
    return found


def _panel(task: str, curves: _Curves) -> Lines:
    """Return mean and worst seed over the steps."""
    steps = sorted({step for seeds in curves.values() for own in seeds.values() for step in own})
    series = []
    for name, seeds in curves.items():
        for choose in (statistics.fmean, min):
            y = []
            for step in steps:
                scores = [own[step] for own in seeds.values() if step in own]
                y.append(choose(scores) if len(scores) == len(seeds) else float("nan"))
            series.append(
                Series(name=label_of(name), y=y, colour=_DRAWN[name], dashed=choose is min)
            )
    return Lines(
        title=TASKS[task].title,
        x_label="steps",
        y_label=f"OOD {score_name(TASKS[task].headline)}",
        x=steps,
        series=series,
        y_range=(0, 1),
    )


def _figure(results: Results) -> Figure | None:
    panels = []
    for task in TASKS:
        curves = _curves(results, task)
        several = {name: curves[name] for name in _DRAWN if len(curves.get(name, ())) > 1}
        if several:
            panels.append(_panel(task, several))
    note = (
        "Unseen compositions during training: the mean of all seeds, and dashed the worst. The "
        "table has the other members of the family, and how many seeds."
    )
    return Figure(panels=[panels], note=note) if panels else None


# --- what is said ----------------------------------------------------------------------------


def _claims(results: Results) -> list[Claim]:
    found = []
    for task, known in TASKS.items():
        ood = {
            name: results.ood(task_name=task, model__attention=name)
            for name in (*_MENDED, "hyla", "softmax", "softmax.rms4", "linear")
        }
        # What the paper claims of HYLA, of the one to take.
        found += ahead(
            f"{known.title}: HYLA as recommended generalises better than softmax and linear "
            "attention.",
            ("HYLA", ood[RECOMMENDED]),
            {label_of(rival): ood[rival] for rival in ("softmax", "linear")},
        )
        for name in _MENDED:
            for rival in ("softmax", "softmax.rms4", "hyla"):
                found += ahead(
                    f"{known.title}: {label_of(name)} generalises better than {label_of(rival)}.",
                    (label_of(name), ood[name]),
                    {label_of(rival): ood[rival]},
                )
    return found


EXPERIMENT = Experiment(
    name="scale",
    title="Beyond the paper: the scale of the attention branch",
    shows="Nothing divides HYLA's sum over the keys by their number: at the start its branch is a "
    "hundred times the residual stream that it joins. Here the output is scaled or normalised "
    "before the output projection, in HYLA and in what it is compared with.",
    sweeps=_sweeps,
    measurement=Measurement(
        name="scale",
        measure=_measure,
        key=("task_name", "attention", *MEMBER, "step"),
        of_runs=True,
    ),
    figure=_figure,
    table=lambda results: variant_table(
        results, lambda cell: label_of(cell.config.model.attention), each_seed=each_seed
    ),
    claims=_claims,
)

"""Figure 2C: compositional generalisation on fuzzy logic."""

import dataclasses
import math
import statistics

from hyla.figures.drawing import Figure
from hyla.lab.claims import Verdict, ahead, percent, share
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, lines_by_method
from hyla.lab.grids import METHODS, fuzzy_lengths_and_fractions
from hyla.results.selection import Estimate
from hyla.results.tables import Results, where

# "Solve" is the paper's word; this is ours for it.
_SOLVED = 0.9


def _grid(results: Results) -> tuple[list[int], list[float]]:
    """Return the lengths and the held-out fractions of the scale, rising."""
    [tree] = fuzzy_lengths_and_fractions(results.conditions.scale)
    grid = tree["grid"]
    return sorted(grid["task.sequence_length"]), sorted(grid["task.held_out_fraction"])


def _ood(results: Results, method: str, length: int, fraction: float) -> Estimate | None:
    return results.ood(
        model__attention=method, task__sequence_length=length, task__held_out_fraction=fraction
    )


def _figure(results: Results) -> Figure | None:
    fractions = sorted({cell.get("task__held_out_fraction") for cell in results.cells})
    panels = [
        lines_by_method(
            where(results.cells, task__held_out_fraction=fraction),
            x=at("task__sequence_length"),
            metric="ood/r2",
            title=f"{fraction:.0%} of the combinations held out",
            x_label="in-context examples",
            y_label="OOD R²",
            y_range=(0, 1),
        )
        for fraction in fractions
    ]
    return Figure(panels=[panels]) if panels else None


def _verdicts(results: Results) -> list[Verdict]:
    return [*_all_solve(results), *_less_affected(results), *_best_where_hardest(results)]


def _all_solve(results: Results) -> list[Verdict]:
    lengths, fractions = _grid(results)
    easiest = {m: _ood(results, m, lengths[-1], fractions[0]) for m in METHODS}
    scores = {method: score for method, score in easiest.items() if score is not None}
    if len(scores) < len(METHODS):
        return []
    return share(
        "All models are able to solve the task given sufficient examples in context.",
        [score.mean > _SOLVED for score in scores.values()],
        f"OOD R² at {lengths[-1]} examples, {fractions[0]:.0%} held out: "
        + ", ".join(f"{name} {percent(score)}" for name, score in scores.items())
        + f" (solved: above {100 * _SOLVED:.0f})",
    )


def _less_affected(results: Results) -> list[Verdict]:
    hyla, *others = METHODS
    found = ahead(
        "As more is held out HYLA is less affected than softmax and linear attention.",
        ("HYLA", _change(results, hyla)),
        {method: _change(results, method) for method in others},
    )
    what = (
        "change of OOD R² (in percent) from the smallest to the largest held-out fraction, mean "
        "over the numbers of examples: "
    )
    return [dataclasses.replace(verdict, number=what + verdict.number) for verdict in found]


def _change(results: Results, method: str) -> Estimate | None:
    """Return what becomes of the score between the extreme fractions, averaged over lengths."""
    lengths, fractions = _grid(results)
    ends = [_ood(results, method, n, f) for n in lengths for f in (fractions[0], fractions[-1])]
    known = [score for score in ends if score is not None]
    if len(known) < len(ends):
        return None
    changes = [many.mean - few.mean for few, many in zip(known[::2], known[1::2], strict=True)]
    error = math.hypot(*(score.standard_error for score in known))
    return Estimate(statistics.fmean(changes), error / len(lengths))


def _best_where_hardest(results: Results) -> list[Verdict]:
    lengths, fractions = _grid(results)
    return [
        verdict
        for length in lengths
        for verdict in ahead(
            f"HYLA does best at {fractions[-1]:.0%} held out and {length} examples.",
            ("HYLA", _ood(results, "hyla", length, fractions[-1])),
            {method: _ood(results, method, length, fractions[-1]) for method in METHODS[1:]},
        )
    ]


EXPERIMENT = Experiment(
    name="fig2c",
    title="Figure 2C: fuzzy logic, unseen combinations of known terms",
    shows="OOD R² over the number of in-context examples, for rising shares of held-out "
    "combinations. In the paper HYLA declines less than softmax and linear attention.",
    sweeps=fuzzy_lengths_and_fractions,
    figure=_figure,
    verdicts=_verdicts,
)

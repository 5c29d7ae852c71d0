"""Figure A3: everything that is measured on fuzzy logic."""

import math
from collections.abc import Sequence

from hyla.figures.drawing import Figure
from hyla.lab.claims import Verdict, share
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, lines_by_method
from hyla.lab.grids import METHODS, fuzzy_lengths_and_fractions
from hyla.results.tables import Results, where

_PANELS = {
    "A: unseen combinations": ("ood/r2", "OOD R²", (0.0, 1.0)),
    "B: training functions": ("test/r2", "R²", (0.0, 1.0)),
    "C: unknown terms": ("unknown_terms/r2", "R²", (-1.0, 1.0)),
    "D: training loss": ("train/loss", "mean squared error", None),
}
# "Fail" and "small differences" are the paper's words; these are ours for them.
_FAILS_BELOW = 0.5
_SMALL_DIFFERENCE = 0.05


def _figure(results: Results) -> Figure | None:
    fractions = sorted({cell.get("task__held_out_fraction") for cell in results.cells})
    rows = [
        [
            lines_by_method(
                where(results.cells, task__held_out_fraction=fraction),
                x=at("task__sequence_length"),
                metric=metric,
                title=f"{name}, {fraction:.0%} held out",
                x_label="in-context examples",
                y_label=label,
                y_range=y_range,
            )
            for fraction in fractions
        ]
        for name, (metric, label, y_range) in _PANELS.items()
    ]
    return Figure(panels=rows) if fractions else None


def _verdicts(results: Results) -> list[Verdict]:
    scores = _of_every_model(results, "unknown_terms/r2")
    spreads = [_spread(group) for group in _by_setting(results, "test/r2")]
    verdicts = []
    if scores:
        fails = [score < _FAILS_BELOW for score in scores]
        verdicts += share(
            "None of the models can solve functions of unknown terms.",
            fails,
            f"R² on unknown terms from {min(scores):.2f} to {max(scores):.2f}; {sum(fails)} of "
            f"{len(fails)} models fail (below {_FAILS_BELOW})",
        )
    if spreads:
        small = [spread < _SMALL_DIFFERENCE for spread in spreads]
        diverged = "; inf: one diverged" if math.inf in spreads else ""
        verdicts += share(
            "In distribution the models show comparably small differences.",
            small,
            f"largest difference in R² between methods at the {len(spreads)} lengths and fractions "
            f"at which all were measured: {min(spreads):.5f} to {max(spreads):.5f}; small at "
            f"{sum(small)} of them (below {_SMALL_DIFFERENCE}{diverged})",
        )
    return verdicts


def _of_every_model(results: Results, metric: str) -> list[float]:
    """Return the scores of all models, at any length and fraction, once there are all methods."""
    if {cell.get("model__attention") for cell in results.cells} < set(METHODS):
        return []
    rows = [row for cell in results.cells for row in cell.picked]
    scores = [row[metric] for row in rows if row.get(metric) is not None]
    # What diverged solves nothing.
    return [-math.inf if math.isnan(score) else score for score in scores]


def _spread(scores: Sequence[float]) -> float:
    """Return the largest difference: infinite, not small, if one diverged."""
    return math.inf if any(map(math.isnan, scores)) else max(scores) - min(scores)


def _by_setting(results: Results, metric: str) -> list[list[float]]:
    """Return the scores of the methods for each length and fraction at which all were measured."""
    groups: dict[tuple[int, float], list[float]] = {}
    for cell in results.cells:
        score = cell.score(metric)
        if score is not None:
            key = (cell.get("task__sequence_length"), cell.get("task__held_out_fraction"))
            groups.setdefault(key, []).append(score.mean)
    return [scores for scores in groups.values() if len(scores) == len(METHODS)]


EXPERIMENT = Experiment(
    name="figA3",
    title="Figure A3: fuzzy logic, all metrics",
    shows="R² on unseen combinations (A), training functions (B) and functions of unknown terms "
    "(C), and the training loss (D). In the paper the models differ on A alone, and all fail on C.",
    sweeps=fuzzy_lengths_and_fractions,
    figure=_figure,
    verdicts=_verdicts,
)

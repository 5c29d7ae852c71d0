"""Figure A3: everything that is measured on fuzzy logic."""

import itertools
import math
from collections.abc import Sequence

from hyla.figures.drawing import Figure
from hyla.lab.claims import PLAIN, Claim, Size
from hyla.lab.effects import FEWEST_SEEDS, Effect, alike, effect
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.fuzzy_logic.fig2c import over_lengths
from hyla.lab.grids import METHODS, fuzzy_lengths_and_fractions
from hyla.results.selection import Estimate
from hyla.results.tables import Cell, Results, where

_PANELS = {
    "A: unseen combinations": ("ood/r2", "OOD R²", (0.0, 1.0)),
    "B: training functions": ("test/r2", "R²", (0.0, 1.0)),
    "C: unknown terms": ("unknown_terms/r2", "R²", (-1.0, 1.0)),
    "D: training loss": ("train/loss", "mean squared error", None),
}
# "Fail" and "small differences" are the paper's words; these are ours for them.
_FAILS_BELOW = 0.5
_SMALL_DIFFERENCE = 0.05
_UNKNOWN = "unknown_terms/r2"


def _figure(results: Results) -> Figure | None:
    rows = [over_lengths(results, f"{name}, {{}} held out", *how) for name, how in _PANELS.items()]
    return Figure(panels=rows) if results.cells else None


def _claims(results: Results) -> list[Claim]:
    return [*_all_fail(results), *_small_differences(results)]


def _all_fail(results: Results) -> list[Claim]:
    """Claim that unknown terms are not solved: on average for certain, and by no single model."""
    cells = [cell for cell in results.cells if cell.score(_UNKNOWN) is not None]
    if {cell.get("model__attention") for cell in cells} < set(METHODS):
        return []
    rows = [row for cell in cells for row in cell.picked]
    scores = [row[_UNKNOWN] for row in rows if row.get(_UNKNOWN) is not None]
    fail = sum(not score >= _FAILS_BELOW for score in scores)  # to diverge is to fail
    known = [score for score in scores if not math.isnan(score)] or [math.nan]
    return [
        Claim(
            text="None of the models can solve functions of unknown terms.",
            numbers=f"R² on unknown terms from {min(known):.2f} to {max(known):.2f}; {fail} of "
            f"{len(scores)} models are below {_FAILS_BELOW}",
            effects=[_failure(where(cells, model__attention=method)) for method in METHODS],
            size=Size(
                least=1,
                of="a share of failing models of",
                why=f"{_FAILS_BELOW} less a method's mean",
            ),
            sized=fail / len(scores),
            unit=PLAIN,
        )
    ]


def _failure(cells: Sequence[Cell]) -> Effect:
    """Return how far a method is below solving, mean over lengths and fractions."""
    found = [score for cell in _seeded(cells) if (score := cell.score(_UNKNOWN)) is not None]
    scores = [score for score in found if not math.isnan(score.mean)] or found
    return effect(*((-1 / len(scores), score) for score in scores), above=-_FAILS_BELOW)


def _seeded(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Return those with enough seeds to be certain of anything, all if none has."""
    return [cell for cell in cells if len(cell.picked) >= FEWEST_SEEDS] or cells


def _small_differences(results: Results) -> list[Claim]:
    """Claim that in distribution no two methods differ, at any length and fraction."""
    groups: dict[tuple[int, float], list[Estimate]] = {}
    for cell in _seeded(results.cells):
        if (score := cell.score("test/r2")) is not None:
            key = (cell.get("task__sequence_length"), cell.get("task__held_out_fraction"))
            groups.setdefault(key, []).append(score)
    whole = [scores for scores in groups.values() if len(scores) == len(METHODS)]
    if not whole:
        return []
    pairs = [pair for scores in whole for pair in itertools.combinations(scores, 2)]
    return [
        Claim(
            text="In distribution the models show comparably small differences.",
            numbers=f"largest difference in R² between two methods "
            f"{max(_apart(*pair) for pair in pairs):.4f}, at the {len(whole)} lengths and "
            "fractions at which all have the most seeds",
            effects=[alike(*pair, within=_SMALL_DIFFERENCE) for pair in pairs],
            size=Size(least=0, why=f"{_SMALL_DIFFERENCE} less the difference"),
            unit=PLAIN,
        )
    ]


def _apart(one: Estimate, other: Estimate) -> float:
    """Return the difference of two means: infinite if one diverged."""
    apart = abs(one.mean - other.mean)
    return math.inf if math.isnan(apart) else apart


EXPERIMENT = Experiment(
    name="figA3",
    title="Figure A3: fuzzy logic, all metrics",
    shows="R² on unseen combinations (A), training functions (B) and functions of unknown terms "
    "(C), and the training loss (D). In the paper the models differ on A alone, and all fail on C.",
    sweeps=fuzzy_lengths_and_fractions,
    figure=_figure,
    claims=_claims,
)

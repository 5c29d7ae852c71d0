"""Figure 2C: compositional generalisation on fuzzy logic."""

import math

from hyla.figures.drawing import Figure, Lines
from hyla.lab.claims import Claim, Size, percent
from hyla.lab.effects import Effect, effect
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import at, lines_by_method
from hyla.lab.experiments.shared.variants import hyla_ahead
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


def over_lengths(
    results: Results, title: str, metric: str, y_label: str, y_range: tuple[float, float] | None
) -> list[Lines]:
    """Return a panel for each fraction, over the number of examples; the title is given it."""
    return [
        lines_by_method(
            where(results.cells, task__held_out_fraction=fraction),
            x=at("task__sequence_length"),
            metric=metric,
            title=title.format(f"{fraction:.0%}"),
            x_label="in-context examples",
            y_label=y_label,
            y_range=y_range,
        )
        for fraction in sorted({cell.get("task__held_out_fraction") for cell in results.cells})
    ]


def _figure(results: Results) -> Figure | None:
    title = "{} of the combinations held out"
    panels = over_lengths(results, title, "ood/r2", "OOD R²", (0, 1))
    return Figure(panels=[panels]) if panels else None


def _claims(results: Results) -> list[Claim]:
    return [*_all_solve(results), *_less_affected(results), *_best_where_hardest(results)]


def _all_solve(results: Results) -> list[Claim]:
    lengths, fractions = _grid(results)
    easiest = {m: _ood(results, m, lengths[-1], fractions[0]) for m in METHODS}
    scores = {method: score for method, score in easiest.items() if score is not None}
    if len(scores) < len(METHODS):
        return []
    return [
        Claim(
            text="All models are able to solve the task given sufficient examples in context.",
            numbers=f"OOD R² at {lengths[-1]} examples, {fractions[0]:.0%} held out: "
            + ", ".join(f"{name} {percent(score)}" for name, score in scores.items()),
            effects=[effect((1, score), above=_SOLVED) for score in scores.values()],
            size=Size(least=0, why=f"the lowest less {100 * _SOLVED:.0f}"),
        )
    ]


def _less_affected(results: Results) -> list[Claim]:
    lengths, fractions = _grid(results)
    corners = {
        (method, length, fraction): _ood(results, method, length, fraction)
        for method in METHODS
        for length in lengths
        for fraction in (fractions[0], fractions[-1])
    }
    known = {corner: score for corner, score in corners.items() if score is not None}
    if len(known) < len(corners):
        return []

    def change(method: str) -> list[tuple[float, Estimate]]:
        """Return the terms of its change between the extreme fractions, mean over lengths."""
        return [
            (sign / len(lengths), known[method, length, fraction])
            for length in lengths
            for sign, fraction in ((-1, fractions[0]), (1, fractions[-1]))
        ]

    def lead(rival: str) -> Effect:
        return effect(*change("hyla"), *((-weight, score) for weight, score in change(rival)))

    changes = {method: effect(*change(method)).value for method in METHODS}
    return [
        Claim(
            text="As more is held out HYLA is less affected than softmax and linear attention.",
            numbers="change of OOD R² (in percent) from the smallest to the largest held-out "
            "fraction, mean over the numbers of examples: "
            + ", ".join(f"{method} {_change_text(value)}" for method, value in changes.items()),
            effects=[lead(rival) for rival in METHODS[1:]],
        )
    ]


def _change_text(value: float) -> str:
    return "diverged" if math.isnan(value) else f"{100 * value:.1f}"


def _best_where_hardest(results: Results) -> list[Claim]:
    lengths, fractions = _grid(results)
    return [
        claim
        for length in lengths
        for claim in hyla_ahead(
            f"HYLA does best at {fractions[-1]:.0%} held out and {length} examples.",
            results,
            task__sequence_length=length,
            task__held_out_fraction=fractions[-1],
        )
    ]


EXPERIMENT = Experiment(
    name="fig2c",
    title="Figure 2C: fuzzy logic, unseen combinations of known terms",
    shows="OOD R² over the number of in-context examples, for rising shares of held-out "
    "combinations. In the paper HYLA declines less than softmax and linear attention.",
    sweeps=fuzzy_lengths_and_fractions,
    figure=_figure,
    claims=_claims,
)

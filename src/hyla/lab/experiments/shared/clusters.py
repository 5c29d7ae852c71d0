"""Judging clusters by numbers: distances between and within classes, instead of by eye."""

import math
import statistics

from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict, by_error, error_of
from hyla.lab.experiments.shared.latent_panels import last_layer, methods_in, rows_of
from hyla.results.selection import Estimate, estimate
from hyla.results.tables import Results

# A ratio of distances from which codes count as clustered: ours for the paper's "closely match".
_CLUSTERED = 1.1


def ratio(
    results: Results, method: str, layer: int, label: str, split: str | None = None
) -> Estimate | None:
    """Return mean distance between classes over that within, averaged over the seeds."""
    values = _by_seed(results, method, layer, label, split).values()
    return estimate([{"ratio": value} for value in values], "ratio") if values else None


def _by_seed(
    results: Results, method: str, layer: int, label: str, split: str | None = None
) -> dict[int, float]:
    wanted = {"attention": method, "layer": layer, "label": label, "statistic": "ratio"}
    if split is not None:
        wanted["split"] = split
    rows = rows_of(results, what="clusters", **wanted)
    return {row["seed"]: row["value"] for row in rows if row["value"] is not None}


def operation_explains_more(
    results: Results, operation: str, claim: str, split: str | None = None
) -> list[Verdict]:
    """Judge, for each method, whether last-layer codes lie by operation rather than by target."""
    verdicts = []
    measured = rows_of(results, what="clusters")
    for method in methods_in(measured):
        layer = last_layer([row for row in measured if row["attention"] == method])
        by_operation = ratio(results, method, layer, operation, split)
        by_target = ratio(results, method, layer, "target", split)
        if by_operation is None or by_target is None:
            continue
        clustered = by_operation.mean - _CLUSTERED > error_of(by_operation)
        more = by_operation.mean - by_target.mean > error_of(by_operation, by_target)
        structured = by_operation.mean - 1 > error_of(by_operation)
        partly = structured and by_operation.mean > by_target.mean
        verdicts.append(
            Verdict(
                claim=f"{claim} ({method}).",
                status=REPRODUCED if clustered and more else PARTLY if partly else NOT,
                number=f"distance between / within {operation}s {_text(by_operation)}, target "
                f"values {_text(by_target)}, in the last layer (1: no structure; counts as "
                f"reproduced above {_CLUSTERED} and above the target's, by more than the errors; "
                "as partly above 1 by that, and above the target's)",
            )
        )
    return verdicts


def _text(value: Estimate) -> str:
    error = "" if math.isnan(value.standard_error) else f" ± {value.standard_error:.2f}"
    return f"{value.mean:.2f}{error}"


def target_fades(results: Results) -> list[Verdict]:
    """Judge whether the target value explains the codes of the first layer more than the last's."""
    verdicts = []
    measured = rows_of(results, what="clusters")
    for method in methods_in(measured):
        last = last_layer([row for row in measured if row["attention"] == method])
        early, late = (_by_seed(results, method, layer, "target") for layer in (0, last))
        differences = [{"difference": early[seed] - late[seed]} for seed in early.keys() & late]
        if last > 0 and differences:
            faded = estimate(differences, "difference")
            verdicts.append(
                Verdict(
                    claim="The magnitude of the target explains clusters more in early layers "
                    f"({method}).",
                    status=by_error(faded.mean, error_of(faded)),
                    number="distance between / within target values: "
                    f"{statistics.fmean(early.values()):.3f} in the first layer, "
                    f"{statistics.fmean(late.values()):.3f} in the last, {faded.mean:.3f} ± "
                    f"{error_of(faded):.3f} less",
                )
            )
    return verdicts

"""Judging clusters by numbers: distances between and within classes, instead of by eye."""

import statistics

from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict, by_error, error_of
from hyla.lab.latent_panels import last_layer, methods_in, rows_of
from hyla.lab.results import Results
from hyla.lab.selection import estimate


def ratio(
    results: Results, method: str, layer: int, label: str, split: str | None = None
) -> float | None:
    """Return mean distance between classes over that within, averaged over the seeds."""
    values = _by_seed(results, method, layer, label, split).values()
    return statistics.fmean(values) if values else None


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
        status = REPRODUCED if by_operation > max(by_target, 1.1) else PARTLY
        if by_operation <= 1:
            status = NOT
        verdicts.append(
            Verdict(
                claim=f"{claim} ({method}).",
                status=status,
                number=f"distance between / within {operation}s {by_operation:.2f}, target values "
                f"{by_target:.2f}, in the last layer (1: no structure; counts as reproduced "
                "above 1.1 and above the target's)",
            )
        )
    return verdicts


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

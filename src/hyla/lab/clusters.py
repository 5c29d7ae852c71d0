"""Judging clusters by numbers: distances between and within classes, instead of by eye."""

import statistics

from hyla.lab.claims import NOT, PARTLY, REPRODUCED, Verdict
from hyla.lab.latent_panels import last_layer, methods_in, rows_of
from hyla.lab.results import Results


def ratio(
    results: Results, method: str, layer: int, label: str, split: str | None = None
) -> float | None:
    """Return mean distance between classes over that within, averaged over the seeds."""
    wanted = {"attention": method, "layer": layer, "label": label, "statistic": "ratio"}
    if split is not None:
        wanted["split"] = split
    rows = rows_of(results, what="clusters", **wanted)
    values = [row["value"] for row in rows if row["value"] is not None]
    return statistics.fmean(values) if values else None


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
                f"{by_target:.2f}, in the last layer (1: no structure; reproduced: above 1.1 and "
                "above the target's)",
            )
        )
    return verdicts


def target_fades(results: Results) -> list[Verdict]:
    """Judge whether the target value explains the codes of the first layer more than the last's."""
    verdicts = []
    measured = rows_of(results, what="clusters")
    for method in methods_in(measured):
        last = last_layer([row for row in measured if row["attention"] == method])
        first_ratio = ratio(results, method, 0, "target")
        last_ratio = ratio(results, method, last, "target")
        if last > 0 and first_ratio is not None and last_ratio is not None:
            verdicts.append(
                Verdict(
                    claim="The magnitude of the target explains clusters more in early layers "
                    f"({method}).",
                    status=REPRODUCED if first_ratio > last_ratio else NOT,
                    number=f"distance between / within target values: {first_ratio:.2f} in the "
                    f"first layer, {last_ratio:.2f} in the last",
                )
            )
    return verdicts

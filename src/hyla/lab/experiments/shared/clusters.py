"""Judging clusters by numbers: distances between and within classes, instead of by eye."""

import statistics

from hyla.lab.claims import PLAIN, Claim, Size
from hyla.lab.effects import effect
from hyla.lab.experiments.shared.latent_panels import last_layer, methods_in, rows_of
from hyla.results.selection import estimate_of
from hyla.results.tables import Results

# A ratio of distances from which codes count as clustered: ours for the paper's "closely match".
_CLUSTERED = 1.1


def _ratios(
    results: Results, method: str, layer: int, label: str, split: str | None = None
) -> dict[int, float]:
    """Return the mean distance between classes over that within, of each seed."""
    wanted = {"attention": method, "layer": layer, "label": label, "statistic": "ratio"}
    if split is not None:
        wanted["split"] = split
    rows = rows_of(results, what="clusters", **wanted)
    return {row["seed"]: row["value"] for row in rows if row["value"] is not None}


def operation_explains_more(
    results: Results, operation: str, claim: str, split: str | None = None
) -> list[Claim]:
    """Claim, for each method, that last-layer codes lie by operation rather than by target."""
    claims = []
    measured = rows_of(results, what="clusters")
    for method in methods_in(measured):
        layer = last_layer([row for row in measured if row["attention"] == method])
        own = _ratios(results, method, layer, operation, split)
        target = _ratios(results, method, layer, "target", split)
        seeds = sorted(own.keys() & target)
        if not seeds:
            continue
        by_operation = estimate_of([own[seed] for seed in seeds])
        by_target = estimate_of([target[seed] for seed in seeds])
        claims.append(
            Claim(
                text=f"{claim} ({method}).",
                numbers=f"distance between / within {operation}s {by_operation}, target values "
                f"{by_target}, in the last layer (1: no structure)",
                # And above 1: codes that lie by nothing may lie even less by their targets.
                effects=[
                    effect((1, estimate_of([own[seed] - target[seed] for seed in seeds]))),
                    effect((1, by_operation), above=1),
                ],
                size=Size(
                    least=_CLUSTERED,
                    of=f"the {operation}s' ratio",
                    why="above the targets', seed by seed, and above 1",
                ),
                sized=by_operation.mean,
                unit=PLAIN,
            )
        )
    return claims


def target_fades(results: Results) -> list[Claim]:
    """Claim that the target value explains the codes of the first layer more than the last's."""
    claims = []
    measured = rows_of(results, what="clusters")
    for method in methods_in(measured):
        last = last_layer([row for row in measured if row["attention"] == method])
        early, late = (_ratios(results, method, layer, "target") for layer in (0, last))
        faded = [early[seed] - late[seed] for seed in sorted(early.keys() & late)]
        if last > 0 and faded:
            claims.append(
                Claim(
                    text="The magnitude of the target explains clusters more in early layers "
                    f"({method}).",
                    numbers="distance between / within target values: "
                    f"{statistics.fmean(early.values()):.3f} in the first layer, "
                    f"{statistics.fmean(late.values()):.3f} in the last",
                    effects=[
                        effect((1, estimate_of(faded))),
                        effect((1, estimate_of(list(early.values()))), above=1),
                    ],
                    unit=PLAIN,
                )
            )
    return claims

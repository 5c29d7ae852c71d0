"""Figure A8: what the codes of softmax attention look like."""

from collections.abc import Sequence

from hyla.figures.drawing import Figure, Heatmap
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import matrix, rows_of, seeds_in
from hyla.lab.experiments.sraven.fig5e import final_similarities
from hyla.results.runs import Row
from hyla.results.tables import Results


def _sampled_codes(samples: Sequence[Row]) -> Heatmap:
    """Return the codes below each other, rule by rule; the first of a rule carries its name."""
    codes: dict[tuple[str, int], dict[int, float]] = {}
    for row in samples:
        codes.setdefault((row["first"], row["sample"]), {})[row["coordinate"]] = row["value"]
    return Heatmap(
        title="A: codes of unseen tasks",
        values=[list(code.values()) for code in codes.values()],
        rows=[rule if sample == 0 else "" for rule, sample in codes],
        columns=[str(coordinate) for coordinate in next(iter(codes.values()))],
        label="score",
    )


def _figure(results: Results) -> Figure | None:
    samples = rows_of(results, what="sample", attention="softmax")
    means = rows_of(results, what="mean", attention="softmax")
    if not samples:
        return None
    shown = samples[0]["seed"]
    similarities = [r for r in final_similarities(results, "softmax") if r["seed"] == shown]
    panels = [
        _sampled_codes(samples),
        matrix(
            means,
            row="first",
            column="coordinate",
            value="value",
            title="B: averages by rule",
            label="score",
        ),
        matrix(
            similarities,
            row="first",
            column="second",
            value="similarity",
            title="C: similarity of the averages",
            label="cosine similarity",
        ),
    ]
    note = (
        "The heads of the two pairs (the last token and the same feature of the panels before), in "
        f"the model that is best on validation (seed {shown}), among "
        f"{seeds_in(rows_of(results, attention='softmax'))}."
    )
    return Figure(panels=[panels], note=note)


EXPERIMENT = Experiment(
    name="figA8",
    title="Figure A8: attention scores of a softmax transformer on SRAVEN",
    shows="Codes of the last layer for unseen tasks (A), their average for each rule (B), and the "
    "cosine similarity of the averages (C).",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", geometry),
    figure=_figure,
)

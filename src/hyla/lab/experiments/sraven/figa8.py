"""Figure A8: what the codes of softmax attention look like."""

from hyla.figures.drawing import Figure
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.code_panels import code_map, matrix
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import of_the_best, rows_of, seeds_in
from hyla.lab.experiments.sraven.fig5e import final_similarities
from hyla.results.tables import Results


def _figure(results: Results) -> Figure | None:
    samples, means = (
        of_the_best(results, rows_of(results, what=what, attention="softmax"))
        for what in ("sample", "mean")
    )
    if not samples:
        return None
    shown = samples[0]["seed"]
    similarities = [r for r in final_similarities(results, "softmax") if r["seed"] == shown]
    panels = [
        code_map(samples, "first", title="A: codes of unseen tasks", label="score"),
        code_map(means, "first", title="B: averages by rule", label="score"),
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

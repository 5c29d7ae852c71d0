"""Figure 2D: codes of the query token in the plane."""

from hyla.lab.claims import Claim
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.clusters import operation_explains_more
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import READINGS, codes_figure
from hyla.results.tables import Results


def _claims(results: Results) -> list[Claim]:
    words = (
        "Clusters of the codes are only partially explained by the target, and correspond to the "
        "functions"
    )
    return [
        claim
        for split, reading in READINGS.items()
        for claim in operation_explains_more(results, "function", f"{words}; {reading}", split)
    ]


EXPERIMENT = Experiment(
    name="fig2d",
    title="Figure 2D: latent codes on fuzzy logic",
    shows="t-SNE of the codes of the query attending to itself, for held-out functions at "
    "one query point: by target value and by the first term.",
    sweeps=method_sweeps("fuzzy"),
    measurement=on("fuzzy", geometry),
    figure=codes_figure({"target": "target value", "term 1": "first term"}, all_layers=False),
    claims=_claims,
)

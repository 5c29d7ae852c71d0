"""Figure 5B: codes of SRAVEN's last layer, by rule."""

from hyla.lab.claims import Claim
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.clusters import operation_explains_more
from hyla.lab.experiments.shared.latent_measurements import geometry, method_sweeps, on
from hyla.lab.experiments.shared.latent_panels import codes_figure
from hyla.results.tables import Results


def _claims(results: Results) -> list[Claim]:
    return operation_explains_more(
        results, "rule", "The final layer's code has clusters that closely match the rule"
    )


EXPERIMENT = Experiment(
    name="fig5b",
    title="Figure 5B: latent codes on SRAVEN by rule",
    shows="The same codes as in Figure 5A, coloured by the rule that gives the token its answer.",
    sweeps=method_sweeps("sraven"),
    measurement=on("sraven", geometry),
    figure=codes_figure({"rule": "rule"}, all_layers=False),
    claims=_claims,
)

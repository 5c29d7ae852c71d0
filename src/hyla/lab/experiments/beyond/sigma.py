"""Beyond the paper: other normalisations of the latent code. A reviewer asked."""

from hyla.lab.claims import Claim, ahead
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.variants import TASKS, on_both_tasks, variant_figure, variant_table
from hyla.results.tables import Cell, Results

_SIGMAS = {
    "hyla": "RMSHead",
    "hyla_minus_rmshead": "none",
    "hyla_minus_rmshead_plus_softmax": "softmax",
    "hyla_plus_softmax": "softmax, then RMSHead",
    "hyla_plus_softmax_last": "RMSHead, then softmax",
}


def _name(cell: Cell) -> str:
    return _SIGMAS[str(cell.config.model.attention)]


def _claims(results: Results) -> list[Claim]:
    found = []
    for task, known in TASKS.items():
        scores = {
            name: results.ood(task_name=task, model__attention=attention)
            for attention, name in _SIGMAS.items()
        }
        rms_head = scores.pop("RMSHead")
        found += ahead(
            f"{known.title}: of the normalisations of HYLA's code, RMSHead generalises best.",
            ("RMSHead", rms_head),
            scores,
        )
    return found


EXPERIMENT = Experiment(
    name="sigma",
    title="Beyond the paper: the normalisation σ of the latent code",
    shows="HYLA's value network with other normalisations of the scores: over the heads, over the "
    "keys, both in either order, or none. The paper leaves the order in HYLA + softmax open.",
    sweeps=on_both_tasks("model.attention", list(_SIGMAS)),
    figure=lambda results: variant_figure(results, _name),
    table=lambda results: variant_table(results, _name),
    claims=_claims,
)

"""Beyond the paper: does HYLA need the ReLU? A reviewer asked."""

from hyla.lab.claims import Claim, ahead
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.variants import TASKS, on_both_tasks, variant_figure, variant_table
from hyla.results.tables import Cell, Results

_PHIS = {
    "hyla": "ReLU",
    "hyla.gelu": "GELU",
    "hyla.silu": "SiLU",
    "hyla.tanh": "tanh",
    "hyla_minus_nonlinearity": "identity",
}


def _name(cell: Cell) -> str:
    return _PHIS[str(cell.config.model.attention)]


def _claims(results: Results) -> list[Claim]:
    found = []
    for task, known in TASKS.items():
        scores = {
            name: results.ood(task_name=task, model__attention=attention)
            for attention, name in _PHIS.items()
        }
        linear = scores.pop("identity")
        for name, score in scores.items():
            found += ahead(
                f"{known.title}: a nonlinear value network ({name}) generalises better.",
                (name, score),
                {"identity": linear},
            )
    return found


EXPERIMENT = Experiment(
    name="phi",
    title="Beyond the paper: the nonlinearity φ of the value network",
    shows="HYLA with other nonlinearities in place of the ReLU, and with none.",
    sweeps=on_both_tasks("model.attention", list(_PHIS)),
    figure=lambda results: variant_figure(results, _name),
    table=lambda results: variant_table(results, _name),
    claims=_claims,
)

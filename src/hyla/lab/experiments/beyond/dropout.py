"""Beyond the paper: the attention dropout that the authors' release leaves on."""

from typing import Any

from hyla.lab.claims import Claim
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import label_of
from hyla.lab.experiments.shared.variants import TASKS, hyla_ahead, variant_figure, variant_table
from hyla.lab.grids import METHODS, sweep
from hyla.results.tables import Cell, Results

_RATES = (0.0, 0.1)


def _sweeps(scale: str) -> list[dict[str, Any]]:
    grid = {"model.attention": METHODS, "model.attention_dropout": _RATES}
    return [sweep(task, scale, grid=grid) for task in TASKS]


def _name(cell: Cell) -> str:
    rate = cell.config.model.attention_dropout
    return f"{label_of(cell.config.model.attention)}, {f'dropout {rate:g}' if rate else 'none'}"


def _claims(results: Results) -> list[Claim]:
    found = []
    for task, known in TASKS.items():
        for rate in _RATES:
            text = f"{known.title}: HYLA is ahead with an attention dropout of {rate:g}."
            found += hyla_ahead(text, results, task_name=task, model__attention_dropout=rate)
    return found


EXPERIMENT = Experiment(
    name="dropout",
    title="Beyond the paper: attention dropout on and off",
    shows="The authors' released configuration drops a tenth of the query-key pairs in training, "
    "which the paper does not mention. Everything else here is trained without. Hyper-parameters "
    "are picked for each row, and may differ too.",
    sweeps=_sweeps,
    figure=lambda results: variant_figure(results, _name),
    table=lambda results: variant_table(results, _name),
    claims=_claims,
)

"""Beyond the paper: is HYLA better at composing, or larger? A reviewer of the paper asked."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hyla.figures.drawing import Figure, Lines
from hyla.lab.claims import NOTICEABLE, Claim, Size, ahead, percent
from hyla.lab.effects import effect
from hyla.lab.experiment import Experiment
from hyla.lab.experiments.shared.panels import label_of, lines_by_method, score_name
from hyla.lab.experiments.shared.variants import TASKS, variant_table
from hyla.lab.grids import METHODS, sweep
from hyla.nn import Transformer, TransformerConfig
from hyla.nn.decoders import count_parameters
from hyla.results.tables import Cell, Results
from hyla.training import load_preset


def _sweeps(scale: str) -> list[dict[str, Any]]:
    return [
        sweep(task, scale, grid={"model.attention": METHODS}, model=changes)
        for task in TASKS
        for changes in _sizes(load_preset(task, scale)["model"])
    ]


def _sizes(model: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the task's own model, a smaller one, and larger ones: in the MLP, and in depth."""
    return [
        {},
        {"embed_dim": model["embed_dim"] // 2, "mlp_dim": model["mlp_dim"] // 2},
        {"mlp_dim": 2 * model["mlp_dim"]},
        {"num_layers": 2 * model["num_layers"]},
    ]


@functools.cache
def parameters(model: TransformerConfig) -> int:
    """Return the number of a model's parameters."""
    with torch.device("meta"):
        return count_parameters(Transformer(model)).total


def _name(cell: Cell) -> str:
    return f"{label_of(cell.config.model.attention)}: {_shape_name(cell)}"


def _shape_name(cell: Cell) -> str:
    layers, width, mlp = _shape(cell)
    return f"{layers} layers, {width} wide, MLP {mlp}"


def _shape(cell: Cell) -> tuple[int, int, int]:
    model = cell.config.model
    return model.num_layers, model.embed_dim, model.mlp_dim


def _figure(results: Results) -> Figure | None:
    rows = []
    for task, known in TASKS.items():
        title, score = known.title, score_name(known.headline)
        cells = [cell for cell in results.cells if cell.config.task_name == task]
        if cells:
            rows.append(
                [
                    _over_parameters(cells, "ood/*", f"{title}: unseen compositions", score),
                    _over_parameters(cells, "train/loss", f"{title}: training loss", "loss"),
                ]
            )
    return Figure(panels=rows) if rows else None


def _over_parameters(cells: Sequence[Cell], metric: str, title: str, y_label: str) -> Lines:
    return lines_by_method(
        cells,
        x=lambda cell: _size(cell) / 1000,
        metric=metric,
        title=title,
        x_label="parameters (thousands)",
        y_label=y_label,
        y_range=None,
    )


def _size(cell: Cell) -> int:
    return parameters(cell.config.model)


def _claims(results: Results) -> list[Claim]:
    found: list[Claim] = []
    for task, known in TASKS.items():
        title = known.title
        cells = [cell for cell in results.cells if cell.config.task_name == task]
        hylas = [c for c in cells if c.config.model.attention == "hyla" and c.ood is not None]
        others = [c for c in cells if c.config.model.attention != "hyla" and c.ood is not None]
        sizes = len(_sizes(load_preset(task, results.conditions.scale)["model"]))
        if len(hylas) + len(others) == sizes * len(METHODS):
            found += _against_larger(title, hylas, others)
        for hyla in hylas:
            same = [cell for cell in others if _shape(cell) == _shape(hyla)]
            if len(same) == len(METHODS) - 1:
                found += [*_generalisation(title, hyla, same), *_fit(title, hyla, same)]
    return found


def _against_larger(title: str, hylas: Sequence[Cell], others: Sequence[Cell]) -> list[Claim]:
    """Compare the smallest HYLA with the others that are larger."""
    small = min(hylas, key=_size)
    return ahead(
        f"{title}: HYLA's lead is not capacity: a small HYLA beats larger softmax and linear.",
        (f"HYLA with {_size(small):,} parameters", small.ood),
        {f"{_name(c)} with {_size(c):,}": c.ood for c in others if _size(c) > _size(small)},
    )


def _generalisation(title: str, hyla: Cell, same: Sequence[Cell]) -> list[Claim]:
    """Compare models of equal size on unseen compositions."""
    return ahead(
        f"{title}: at equal size HYLA generalises better ({_shape_name(hyla)}).",
        ("HYLA", hyla.ood),
        {str(cell.config.model.attention): cell.ood for cell in same},
    )


def _fit(title: str, hyla: Cell, same: Sequence[Cell]) -> list[Claim]:
    """Compare how well models of equal size fit the training compositions."""
    seen = {str(cell.config.model.attention): cell.seen for cell in same}
    known = {name: score for name, score in seen.items() if score is not None}
    if hyla.seen is None or len(known) < len(seen):
        return []
    least = NOTICEABLE.least
    effects = {name: effect((1, s), (-1, hyla.seen), above=-least) for name, s in known.items()}
    # The one that fits best decides, or one that diverged: of that nothing is known.
    best = max(effects, key=lambda name: (math.isnan(effects[name].value), effects[name].value))
    return [
        Claim(
            text=f"{title}: at equal size HYLA does not fit training compositions better "
            f"({_shape_name(hyla)}).",
            numbers=f"seen compositions: HYLA {percent(hyla.seen)}, {best} {percent(known[best])}",
            effects=[effects[best]],
            size=Size(least=0, why=f"the best other, and {100 * least:g}, less HYLA"),
        )
    ]


EXPERIMENT = Experiment(
    name="capacity",
    title="Beyond the paper: capacity or composition?",
    shows="Training loss and generalisation of models of several sizes. HYLA has as many "
    "parameters as softmax and linear attention of the same shape.",
    sweeps=_sweeps,
    figure=_figure,
    table=lambda results: variant_table(
        results, _name, parameters=lambda cell: f"{parameters(cell.config.model):,}"
    ),
    claims=_claims,
)

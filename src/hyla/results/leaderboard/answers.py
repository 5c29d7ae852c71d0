"""Answers to a variant's instances: of trained models, and of those who need no training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from jaxtyping import Int64
from torch import Tensor

from hyla.nn import Transformer
from hyla.tasks.sraven.generator import as_batch
from hyla.tasks.sraven.solver.exact import Solver
from hyla.tasks.sraven.variants import INSTANCES, SEED, SPLIT, Variant
from hyla.training import TrainConfig

_BATCH = 1024


def by_chance(variant: Variant) -> Int64[Tensor, "n m"]:
    """All integers at random, every value as likely (torch's generator, seed 0)."""
    random = torch.Generator().manual_seed(0)
    size = (INSTANCES, variant.config.panel_size)
    return torch.randint(variant.config.num_values, size, generator=random)


def by_solver(variant: Variant) -> Int64[Tensor, "n m"]:
    """The most probable answer, not knowing which combinations are held out."""
    return Solver(variant.config)(variant.evaluation().panels).answer


BASELINES: dict[str, Callable[[Variant], Int64[Tensor, "n m"]]] = {
    "chance": by_chance,
    "solver": by_solver,
}
"""Those who need no training, by name."""


@torch.no_grad()
def by_model(
    variant: Variant,
    model: Transformer,
    config: TrainConfig,
    *,
    seed: int,
    on_progress: Callable[[int], None] = lambda instances: None,
) -> Int64[Tensor, "n m"]:
    """The answers of a model of ours; a ValueError if it was trained on what is held out here.

    `on_progress` is called with the number of instances answered since its last call.
    """
    check_trained_for(variant, config, seed=seed)
    inputs = as_batch(variant.evaluation(), num_values=variant.config.num_values).inputs
    device = next(model.parameters()).device
    queries = variant.config.panel_size
    answers = []
    for part in inputs.split(_BATCH):
        answers.append(model(part.to(device))[:, -queries:].argmax(-1).cpu())
        on_progress(len(part))
    return torch.cat(answers)


def check_trained_for(variant: Variant, config: TrainConfig, *, seed: int) -> None:
    """Raise a ValueError unless a model was trained as the variant has it."""
    if config.task_name != "sraven":
        raise ValueError(f"the model was trained on {config.task_name}, not on sraven")
    settings = dataclasses.replace(config.task, split_seed=variant.config.split_seed)
    for field in dataclasses.fields(settings):
        own, asked = (getattr(each, field.name) for each in (settings, variant.config))
        if own != asked:
            raise ValueError(
                f"the model was trained with {field.name} {own}, and variant {variant.name} has "
                f"{asked}: train one with --variant {variant.name}"
            )
    held_out = set(variant.task.manifest(SEED).sides[SPLIT])
    seen = held_out & set(config.build_task().manifest(seed).sides["train"])
    if seen:
        raise ValueError(
            f"the model was trained on {len(seen)} of the {len(held_out)} combinations that "
            f"variant {variant.name} holds out, because its split is that of seed {seed}: train "
            f"one with --variant {variant.name}"
        )

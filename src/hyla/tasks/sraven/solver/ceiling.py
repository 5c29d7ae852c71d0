"""The best accuracy that any model could reach on SRAVEN, on the instances it is scored on."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from hyla.tasks.sraven.generator import is_permuted
from hyla.tasks.sraven.solver.exact import Solver
from hyla.tasks.sraven.task import SIDE_OF_SPLIT, Sraven

_CHUNK = 4096


@torch.no_grad()
def best_posteriors(
    task: Sraven, split: str, *, seed: int, instances: int, device: torch.device | str
) -> Float64[Tensor, " n"]:
    """The posterior of the best answer to each of the split's first instances.

    Their mean is the expected accuracy of an observer who knows the split's combinations.
    """
    side = task.manifest(seed).sides[SIDE_OF_SPLIT[split]]
    solver = Solver(task.config, combinations=side, device=device)
    chunk = min(instances, _CHUNK)
    sampler = task.sampler(split, seeds=[seed], batch_size=chunk, device=device)
    batches = [
        solver(sampler.instances(i).panels[0], permuted=is_permuted(split)).posterior.double()
        for i in range(math.ceil(instances / chunk))
    ]
    return torch.cat(batches)[:instances]

"""The best accuracy that any model could reach on SRAVEN, on the instances it is scored on."""

import math

import torch

from hyla.results.runs import Row
from hyla.tasks import Sraven
from hyla.tasks.sraven.solver.exact import Solver
from hyla.training import TrainConfig
from hyla.training.devices import resolve_device

_CHUNK = 4096


@torch.no_grad()
def ceiling_rows(config: TrainConfig, *, device: str = "auto") -> list[Row]:
    """Return, for each seed of a SRAVEN config, the mean posterior of the best answer on `ood`.

    That is the expected accuracy of an observer who knows which combinations are held out.
    """
    task = config.build_task()
    if not isinstance(task, Sraven):
        raise ValueError(f"only SRAVEN has a solver, not {config.task_name}")
    where = resolve_device(device)
    instances = config.evaluation.final_instances
    rows = []
    for seed in sorted({member.seed for member in config.members}):
        solver = Solver(task.config, combinations=task.manifest(seed).sides["ood"], device=where)
        chunk = min(instances, _CHUNK)
        sample = task.sampler("ood", seeds=[seed], batch_size=chunk, device=where)
        batches = [
            solver(sample.instances(i).panels[0], permuted=True).posterior.double()
            for i in range(math.ceil(instances / chunk))
        ]
        best = torch.cat(batches)[:instances]
        error = float(best.std() / math.sqrt(len(best)))
        rows.append(
            {
                "seed": seed,
                "instances": len(best),
                "ceiling": float(best.mean()),
                "ceiling_se": error,
            }
        )
    return rows

"""The best score that any model could reach, on the instances that models are scored on."""

import math

from hyla.results.runs import Row
from hyla.training import TrainConfig
from hyla.training.devices import resolve_device


def ceiling_rows(config: TrainConfig, *, device: str = "auto") -> list[Row]:
    """Return, for each seed of a config, the best score on `ood`; nothing if nobody knows it."""
    task = config.build_task()
    rows = []
    for seed in sorted({member.seed for member in config.members}):
        best = task.ceiling(
            "ood",
            seed=seed,
            instances=config.evaluation.final_instances,
            device=resolve_device(device),
        )
        if best is None:
            return []
        rows.append(
            {
                "seed": seed,
                "instances": len(best),
                "ceiling": float(best.mean()),
                "ceiling_se": float(best.std() / math.sqrt(len(best))),
            }
        )
    return rows

"""Batches a second of the task samplers, next to the authors' generator.

A batch has 128 instances. The authors' figures are for their JAX generator, which is compiled and
makes one batch a call.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from hyla._clock import calls_per_second
from hyla.benchmarks.clock import repeated
from hyla.tasks import Batch, FuzzyLogic, FuzzyLogicConfig, Sampler, Sraven, SravenConfig, Task

BATCH_SIZE = 128
POPULATION = 16  # batches in one call, where there are several

AUTHORS = {("sraven", "cpu"): "440", ("sraven", "cuda"): "2,150", ("fuzzy, T = 32", "cpu"): "1,150"}


def measure(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield one row per task and way of calling."""
    tasks: dict[str, Task[Sampler]] = {
        "sraven": Sraven(SravenConfig()),
        "fuzzy, T = 32": FuzzyLogic(FuzzyLogicConfig()),
    }
    for name, task in tasks.items():
        for compiled in (False, True):
            for batches in (1, POPULATION):
                sampler: Callable[[torch.Tensor], Batch] = task.sampler(
                    "train", seeds=range(batches), batch_size=BATCH_SIZE, device=device
                )
                if compiled:
                    sampler = torch.compile(sampler, fullgraph=True, dynamic=False)
                yield {
                    "task": name,
                    "compiled": compiled,
                    "batches_per_call": batches,
                    "batches_per_second": batches * _calls_per_second(sampler, device, seconds),
                    "authors_batches_per_second": AUTHORS.get((name, device.type), ""),
                }


def _calls_per_second(
    sampler: Callable[[torch.Tensor], Batch], device: torch.device, seconds: float
) -> float:
    index = torch.zeros((), dtype=torch.int64, device=device)

    def call() -> None:
        sampler(index)
        index.add_(1)

    return calls_per_second(repeated(call), device, seconds)

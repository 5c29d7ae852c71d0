"""How many batches a second the task samplers make, next to the authors' generator.

    python benchmarks/samplers.py [--device cuda] [--population 16] [--seconds 1]

Three ways of calling: one batch of 128 a call; a population's batches in one call; and the latter
compiled. Each figure is the median over repetitions, in batches of 128 a second.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from hyla.tasks import Batch, FuzzyLogic, FuzzyLogicConfig, Sampler, Sraven, SravenConfig, Task

BATCH_SIZE = 128

# Batches a second of the authors' JAX generator: two CPU cores, one H200.
AUTHORS = {
    ("sraven", "cpu"): "440",
    ("sraven", "cuda"): "2,150",
    ("fuzzy logic, T = 32", "cpu"): "1,150",
}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--population", type=int, default=16, help="batches in one call")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure")
    arguments = parser.parse_args()
    device, population = arguments.device, arguments.population

    print(f"torch {torch.__version__}, {describe(device)}; batches of {BATCH_SIZE} a second")
    header = f"{'task':<22}{'authors':>9}{'one a call':>13}{f'{population} a call':>13}"
    print(header + f"{'compiled, one':>16}{f'compiled, {population}':>16}")
    tasks: dict[str, Task[Sampler]] = {
        "sraven": Sraven(SravenConfig()),
        "fuzzy logic, T = 32": FuzzyLogic(FuzzyLogicConfig()),
    }
    for name, task in tasks.items():
        rates: list[float] = []
        for compiled in (False, True):
            for size in (1, population):
                sampler: Callable[[torch.Tensor], Batch] = task.sampler(
                    "train", seeds=range(size), batch_size=BATCH_SIZE, device=device
                )
                if compiled:
                    sampler = torch.compile(sampler, fullgraph=True, dynamic=False)
                rates.append(size * calls_a_second(sampler, device, arguments.seconds))
        authors = AUTHORS.get((name, torch.device(device).type), "-")
        one, many, one_compiled, many_compiled = (f"{rate:,.0f}" for rate in rates)
        row = f"{name:<22}{authors:>9}{one:>13}{many:>13}{one_compiled:>16}{many_compiled:>16}"
        print(row, flush=True)


def calls_a_second(
    sampler: Callable[[torch.Tensor], Batch], device: str, seconds: float, repetitions: int = 20
) -> float:
    """The median rate over repetitions that together take about the given time."""
    index = torch.zeros((), dtype=torch.int64, device=device)

    def duration(calls: int) -> float:
        synchronise(device)
        start = time.perf_counter()
        for _ in range(calls):
            sampler(index)
            index.add_(1)
        synchronise(device)
        return (time.perf_counter() - start) / calls

    duration(5)  # warm up, compile
    calls = max(1, int(seconds / repetitions / duration(5)))
    return 1 / statistics.median(duration(calls) for _ in range(repetitions))


def synchronise(device: str) -> None:
    """Wait for the device."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def describe(device: str) -> str:
    """The device in words."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()

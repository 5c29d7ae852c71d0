"""How fast a population trains, and how many members are fastest together on a GPU."""

import dataclasses
from collections.abc import Callable

import torch

from hyla._clock import calls_per_second
from hyla.training.config import TrainConfig
from hyla.training.devices import free_memory
from hyla.training.population.population import Population

FIRST_SIZE = 12
"""Members that are tried first; then twice as many and so on, or half as many."""
_GAIN = 1.05  # in model-steps a second: what another number of members has to bring
_SECONDS = 2.0


def fastest_size(config: TrainConfig, device: torch.device, say: Callable[[str], None]) -> int:
    """Return how many members of a config to train together on a GPU, by trying.

    Twice as many as long as they are faster by a twentieth, would fit into memory, and are wanted;
    if they never are, half as many by the same rule: of wide models, the activations of fewer may
    stay in the cache.
    """
    memory = torch.cuda.get_device_properties(device).total_memory

    def tried(size: int) -> tuple[float, int]:
        try:
            rate, peak = _tried(config, size, device)
        except torch.cuda.OutOfMemoryError:
            rate, peak = 0.0, memory
        free_memory()
        say(f"{size} models together: {rate:,.0f} model-steps/s, {peak / 2**30:.1f} GiB")
        return rate, peak

    best = FIRST_SIZE
    best_rate, peak = tried(best)
    while 2 * best <= len(config.members) and 2 * peak <= memory:
        rate, peak = tried(2 * best)
        if rate < _GAIN * best_rate:
            break
        best, best_rate = 2 * best, rate
    while FIRST_SIZE >= best > 1:
        rate, _ = tried(best // 2)
        if rate < _GAIN * best_rate:
            break
        best, best_rate = best // 2, rate
    return best


def _tried(config: TrainConfig, size: int, device: torch.device) -> tuple[float, int]:
    """Return the model-steps a second of `size` members, and the bytes that they take."""
    torch.compiler.reset()  # its limit of recompilations counts across populations
    torch.cuda.reset_peak_memory_stats(device)
    population = Population(
        config.build_task(),
        config.model,
        [dataclasses.replace(config.members[0], seed=seed) for seed in range(size)],
        total_steps=config.steps,
        batch_size=config.batch_size,
        device=device,
        precision=config.precision,
    )
    population.prepare(config.evaluation.splits)
    rate = size * calls_per_second(population.train, device, _SECONDS)
    return rate, torch.cuda.max_memory_reserved(device)

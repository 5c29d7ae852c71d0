"""`train(config)`: a population from wherever its run stands to its end."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hyla.training.config import Evaluation, TrainConfig
from hyla.training.devices import resolve_device
from hyla.training.member import Member
from hyla.training.population.cohort import Cohort
from hyla.training.population.population import Population
from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.loop import OpenSinks, run_to_the_end
from hyla.training.run.ranks import Ranks


def train(
    config: TrainConfig,
    *,
    root: Path | str = "runs",
    device: torch.device | str = "auto",
    max_seconds: float = math.inf,
    sinks: OpenSinks = lambda path, names: (),
    compile: bool | None = None,
    until: int | None = None,
    screen: Console | None = None,
) -> dict[str, Any]:
    """Start or continue the run of `config` under `root` and return its summary.

    A finished run is not trained again. Raises `Interrupted` after a signal, `max_seconds` or the
    first record at the step `until` or later, with a checkpoint saved: the same call continues from
    it. Progress is shown on `screen`, the terminal by default.
    """
    device = resolve_device(device)
    config.check_device(device)

    def build(run: RunDirectory | None, say: Callable[[str], None]) -> Cohort:
        def prepare(population: Population) -> None:
            population.prepare(config.evaluation.splits)

        if device.type == "cuda":
            say("compiling and capturing the training step")
        cohort = build_cohort(config, config.evaluation, device, prepare, say, compile=compile)
        if device.type == "cuda":
            used = torch.cuda.max_memory_allocated(device) / 2**30
            say(f"GPU memory of {len(config.members)} models: {used:.2f} GiB")
        return cohort

    return run_to_the_end(
        config,
        build,
        FileCheckpoints,
        root=root,
        ranks=Ranks.alone(device),
        max_seconds=max_seconds,
        sinks=sinks,
        until=until,
        screen=screen,
    )


def build_cohort(
    config: TrainConfig,
    evaluation: Evaluation,
    device: torch.device,
    prepare: Callable[[Population], None],
    say: Callable[[str], None],
    *,
    compile: bool | None = None,
) -> Cohort:
    """Return the members of a config; `prepare` takes the memory of those that fit together."""
    task = config.build_task()

    def build(members: Sequence[Member], beside: Population | None) -> Population:
        if device.type == "cuda":
            torch.compiler.reset()  # its limit of recompilations counts across populations
            torch.cuda.reset_peak_memory_stats(device)
        population = Population(
            task,
            config.model,
            members,
            total_steps=config.steps,
            batch_size=config.batch_size,
            device=device,
            precision=config.precision,
            compile=compile,
            beside=beside,
        )
        if beside is None and population.why_plain is not None:
            say(f"blocks are not fused: {population.why_plain}")
        prepare(population)
        return population

    return Cohort(config.members, evaluation, build, say)

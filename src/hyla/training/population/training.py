"""`train(config)`: a population from wherever its run stands to its end."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hyla.training.config import Evaluation, TrainConfig
from hyla.training.devices import resolve_device
from hyla.training.population.cohort import Cohort, Model
from hyla.training.population.company import check_company
from hyla.training.population.population import Population
from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.held import OpenSinks
from hyla.training.run.loop import runs_to_the_end
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
    (summary,) = train_together(
        [config],
        root=root,
        device=device,
        max_seconds=max_seconds,
        sinks=sinks,
        compile=compile,
        until=until,
        screen=screen,
    )
    return summary


def train_together(
    configs: Sequence[TrainConfig],
    *,
    root: Path | str = "runs",
    device: torch.device | str = "auto",
    max_seconds: float = math.inf,
    sinks: OpenSinks = lambda path, names: (),
    compile: bool | None = None,
    until: int | None = None,
    screen: Console | None = None,
) -> list[dict[str, Any]]:
    """Start or continue the runs of `configs` under `root` as one population; return summaries.

    Each has the directory and, but for rounding, the numbers that it would have alone; any of them
    may also be continued without the others. Only the presets of attention and the members may
    differ, or it is a ValueError; and an `ApartError` if some are finished or at another step. For
    the rest, see `train`.
    """
    check_company(configs)
    device = resolve_device(device)
    for config in configs:
        config.check_device(device)

    def build(run: RunDirectory | None, say: Callable[[str], None]) -> Cohort:
        def prepare(population: Population) -> None:
            population.prepare(configs[0].evaluation.splits)

        if device.type == "cuda":
            say("compiling and capturing the training step")
        evaluation = configs[0].evaluation
        cohort = build_cohort(configs, evaluation, device, prepare, say, compile=compile)
        if device.type == "cuda":
            used = torch.cuda.max_memory_allocated(device) / 2**30
            say(f"GPU memory of {len(cohort.models)} models: {used:.2f} GiB")
        return cohort

    return runs_to_the_end(
        configs,
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
    configs: Sequence[TrainConfig],
    evaluation: Evaluation,
    device: torch.device,
    prepare: Callable[[Population], None],
    say: Callable[[str], None],
    *,
    compile: bool | None = None,
) -> Cohort:
    """Return the members of runs; `prepare` takes the memory of those that fit together."""
    config, task = configs[0], configs[0].build_task()

    def build(models: Sequence[Model], beside: Population | None) -> Population:
        if device.type == "cuda":
            torch.compiler.reset()  # its limit of recompilations counts across populations
            torch.cuda.reset_peak_memory_stats(device)
        population = Population(
            task,
            config.model,
            [model.member for model in models],
            attentions=[model.attention for model in models],
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

    models = [Model(member, each.model.attention) for each in configs for member in each.members]
    return Cohort(models, evaluation, build, say)

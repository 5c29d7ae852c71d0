"""`train(config)`: a population from wherever its run stands to its end."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hyla.training.config import Evaluation, TrainConfig
from hyla.training.devices import resolve_device
from hyla.training.identity import fingerprint
from hyla.training.population.cohort import Cohort, Model
from hyla.training.population.mixing import why_not_mixed
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
    (summary,) = _train(
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
    _check_company(configs)
    return _train(
        configs,
        root=root,
        device=device,
        max_seconds=max_seconds,
        sinks=lambda path, names: (),
        compile=compile,
        until=until,
        screen=screen,
    )


def _train(
    configs: Sequence[TrainConfig],
    *,
    root: Path | str,
    device: torch.device | str,
    max_seconds: float,
    sinks: OpenSinks,
    compile: bool | None,
    until: int | None,
    screen: Console | None,
) -> list[dict[str, Any]]:
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


def company_key(config: TrainConfig) -> str | None:
    """Return what runs that can train together have in common; None if a run trains alone.

    That is all but their members and the preset of attention.
    """
    return None if why_not_mixed(config.model) else fingerprint(_common(config))


def _common(config: TrainConfig) -> dict[str, Any]:
    common = replace(config, model=replace(config.model, attention="softmax"))
    return common.to_tree() | {"members": [], "backend": config.model.backend}


def _check_company(configs: Sequence[TrainConfig]) -> None:
    if len({fingerprint(config.to_tree()) for config in configs}) < len(configs):
        raise ValueError("one of these runs is there twice: give all members to one config")
    first, *others = configs
    for config in others:
        different = ", ".join(_differences(_common(first), _common(config)))
        reason = why_not_mixed(first.model) or why_not_mixed(config.model)
        if different or reason:
            raise ValueError(
                "runs that train together differ in their members and the preset of attention "
                f"alone: {reason or f'of these {different} differs'}"
            )


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of settings that are not the same in two trees, as model.num_layers."""
    for name in one.keys() | other.keys():
        here, there = one.get(name), other.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            yield from (f"{name}.{inner}" for inner in _differences(here, there))
        elif here != there:
            yield name


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

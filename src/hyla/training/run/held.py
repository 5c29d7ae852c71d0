"""A run that this process holds, alone or as one of several whose models train together."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hyla.training.run.checkpoints.base import Checkpoint, Checkpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.errors import ApartError
from hyla.training.run.reading import directory_of
from hyla.training.run.sinks import MetricSink, member_scalars
from hyla.training.run.trainee import RunConfig

OpenSinks = Callable[[Path, Sequence[str]], Sequence[MetricSink]]


def run_name(config: RunConfig) -> str:
    """Return the readable part of a run directory's name."""
    return f"{config.to_tree()['task_name']}-{config.model.attention}"


def run_path(config: RunConfig, root: Path | str) -> Path:
    """Return the directory of the run of `config` under `root`, whether or not it exists."""
    return directory_of(Path(root), run_name(config), config.to_tree())


def open_directories(
    configs: Sequence[RunConfig], root: Path, sinks: OpenSinks, stack: ExitStack
) -> list[tuple[RunDirectory, Sequence[MetricSink]]]:
    """Take the directories of runs, and their sinks if none is finished, until `stack` unwinds."""
    runs = [
        stack.enter_context(RunDirectory.open(root, run_name(config), config.to_tree()))
        for config in configs
    ]
    if any(run.finished is not None for run in runs):
        return [(run, ()) for run in runs]
    held = []
    for config, run in zip(configs, runs, strict=True):
        held.append((run, sinks(run.path, [str(member) for member in config.members])))
        for sink in held[-1][1]:
            stack.callback(sink.close)
    return held


def of_models(tensors: Mapping[str, Tensor], place: slice) -> dict[str, Tensor]:
    """Return some models' part of what a checkpoint holds: what has no axis is everybody's."""
    return {name: t if t.ndim == 0 else t[place] for name, t in tensors.items()}


def check_together(found: Sequence[Checkpoint | None]) -> None:
    """Raise an `ApartError` unless runs with these checkpoints can go on together.

    They may stand at the same step, and one before and one after it was logged.
    """
    if len({None if each is None else each.step for each in found}) > 1:
        raise ApartError("they are not at the same step: train them one after the other")
    shared = [{n: t.item() for n, t in _tensors(each).items() if t.ndim == 0} for each in found]
    if any(each != shared[0] for each in shared):
        raise ApartError(
            "of the step that they are at some have logged the losses, and some have not: train "
            "them one after the other"
        )


def _tensors(checkpoint: Checkpoint | None) -> Mapping[str, Tensor]:
    return (checkpoint and checkpoint.tensors) or {}


@dataclass(frozen=True, kw_only=True)
class HeldRun:
    """Where what becomes of a run's models goes, and which of all models these are."""

    config: RunConfig
    directory: RunDirectory | None
    """On the first rank, which alone writes."""
    checkpoints: Checkpoints
    sinks: Sequence[MetricSink]
    place: slice | None = None
    """That of its models among all that train together; None if there are no others."""

    @property
    def names(self) -> list[str]:
        """The names of its models."""
        return [str(member) for member in self.config.members]

    def own(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return what is the run's of a list with an entry for each model."""
        return values if self.place is None else values[self.place]

    def own_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the run's part of what a checkpoint holds, in the same memory."""
        return tensors if self.place is None else of_models(tensors, self.place)

    def log(self, step: int, clocks: Mapping[str, float], record: Mapping[str, list]) -> None:
        """Log what is the run's of a record, beside what is everybody's."""
        assert self.directory is not None
        own = {name: self.own(values) for name, values in record.items()}
        self.directory.log({"step": step, **clocks, **own})
        for sink in self.sinks:
            sink.write(step, member_scalars(self.names, own))

    def has_final_record(self, metrics: Mapping[str, list]) -> bool:
        """Return whether a process that was killed while it finished has logged them already."""
        assert self.directory is not None
        # One with a training loss is that of a usual evaluation, on which a run may end early.
        last = [record for record in self.directory.metrics()[-1:] if "loss" not in record]
        return any(metrics.keys() <= record.keys() for record in last)

    def finish(self, common: Mapping[str, Any], models: Sequence[Mapping]) -> dict[str, Any] | None:
        """Mark the run as complete, and return its summary; `common` is everybody's."""
        assert self.directory is not None
        own = zip(self.config.members, self.own(models), strict=True)
        members = [{**vars(member), **model} for member, model in own]
        self.directory.finish({**common, "members": members})
        return self.directory.finished

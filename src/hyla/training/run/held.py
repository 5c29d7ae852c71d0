"""A run that this process holds, alone or as one of several whose models train together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hyla.training.run.checkpoints.base import Checkpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.sinks import MetricSink, member_scalars
from hyla.training.run.trainee import RunConfig


@dataclass(frozen=True, kw_only=True)
class HeldRun:
    """Where what becomes of a run's models goes, and which of all models these are."""

    config: RunConfig
    directory: RunDirectory | None
    """On the first rank, which alone writes."""
    checkpoints: Checkpoints
    sinks: Sequence[MetricSink]
    models: slice | None = None
    """Its own among those that train together; None if all are."""
    beside: Sequence[str] = ()
    """The directories of the others."""

    @property
    def names(self) -> list[str]:
        """The names of its models."""
        return [str(member) for member in self.config.members]

    def own(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return what is the run's of a list with an entry for each model."""
        return values if self.models is None else values[self.models]

    def own_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the run's part of what a checkpoint holds, in the same memory.

        Of several runs, models are the first axis; what has none is the same for all.
        """
        if self.models is None:
            return tensors
        return {name: t if t.ndim == 0 else t[self.models] for name, t in tensors.items()}

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
        """Mark the run as complete, and return its summary.

        `common` is everybody's, the clocks too; a run that was not alone says beside which it was.
        """
        assert self.directory is not None
        own = zip(self.config.members, self.own(models), strict=True)
        members = [{**vars(member), **model} for member, model in own]
        company = {"beside": list(self.beside)} if self.beside else {}
        self.directory.finish({**common, **company, "members": members})
        return self.directory.finished

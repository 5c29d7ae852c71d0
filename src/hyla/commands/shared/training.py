"""What `hyla train` and `hyla train language` take alike: settings of a training, and its place."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hyla._errors import check_max_seconds
from hyla.commands.shared.options import (
    PrecisionName,
    ScaleName,
    check_writable,
    without_none,
)
from hyla.training import merge
from hyla.training.config import read_settings
from hyla.training.run.checkpoints.base import newest_step
from hyla.training.run.reading import read_finished
from hyla.training.run.sinks import MetricSink, TensorBoardSink, WandbSink


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The preset, and settings that go over it."""

    scale: ScaleName = "laptop"
    """smoke (seconds), laptop (minutes on two cores) or paper (the paper's own setting)."""
    config: Path | None = None
    """YAML file of settings over the preset, in its form; options here go over both."""
    steps: int | None = None
    """Optimisation steps."""
    batch_size: int | None = None
    """Instances per step and model; of text, sequences a step, over all processes together."""
    precision: PrecisionName | None = None
    """float32, tf32 or bf16."""
    log_every: int | None = None
    """Steps between records of the training loss."""

    def over(self, preset: dict[str, Any]) -> dict[str, Any]:
        """Return a preset's tree with what the file says."""
        if self.config is None:
            return preset
        return merge(preset, read_settings(self.config, example="steps: 1000"))

    def settings(self) -> dict[str, Any]:
        """Return what was given, by name."""
        names = ("steps", "batch_size", "precision", "log_every")
        return without_none({name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a run is trained, and who is told of it."""

    root: Path = Path("runs")
    """Folder of the run directories."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes the GPU if there is one."""
    max_seconds: float | None = None
    """Stop after this time, with a checkpoint."""
    tensorboard: Annotated[bool, Parameter(negative=())] = False
    """Also write TensorBoard files, into the run directory."""
    wandb: str | None = None
    """Also send metrics to this Weights & Biases project."""

    def check(self) -> None:
        """Raise a ValueError for what cannot be."""
        check_max_seconds(self.max_seconds)
        check_writable(root=self.root)

    def arguments(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the functions that train take, for the run of a config's tree."""
        return {
            "root": self.root,
            "device": self.device,
            "max_seconds": math.inf if self.max_seconds is None else self.max_seconds,
            "sinks": partial(self._open_sinks, tree),
        }

    def say_if_too_late(self, path: Path) -> None:
        """Say that a finished run has nothing left to record, where recording was asked for."""
        asked = ["--tensorboard"] * self.tensorboard + ["--wandb"] * (self.wandb is not None)
        if asked and path.exists() and read_finished(path) is not None:
            print(
                f"{path} is finished: {' and '.join(asked)} records steps while they are trained, "
                "and nothing here. Its metrics are in metrics.jsonl there.",
                file=sys.stderr,
            )

    def _open_sinks(
        self, tree: Mapping[str, Any], path: Path, names: Sequence[str]
    ) -> list[MetricSink]:
        """Open what --tensorboard and --wandb ask for; a run continues from its checkpoint."""
        sinks: list[MetricSink] = []
        if self.tensorboard:
            step = newest_step(path)
            first_step = 0 if step is None else step + 1
            sinks.append(TensorBoardSink(path / "tensorboard", names, first_step=first_step))
        if self.wandb is not None:
            known = {"name": path.name, "run_id": path.name, "config": dict(tree)}
            sinks.append(WandbSink(path, project=self.wandb, **known))
        return sinks

"""What `hyla train` and `hyla train language` take alike: settings of a training, and its place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hyla.commands.shared.options import (
    PrecisionName,
    ScaleName,
    check_max_seconds,
    check_writable,
    without_none,
)
from hyla.commands.shared.tracking import open_sinks, say_if_too_late
from hyla.training import merge
from hyla.training.config import read_settings


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
            "sinks": partial(open_sinks, tree, **self._told),
        }

    def say_if_too_late(self, path: Path) -> None:
        """Say that a finished run has nothing left to record, where recording was asked for."""
        say_if_too_late(path, **self._told)

    @property
    def _told(self) -> dict[str, Any]:
        return {"tensorboard": self.tensorboard, "wandb_project": self.wandb}

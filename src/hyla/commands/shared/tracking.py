"""The sinks that the options --tensorboard and --wandb ask for."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyla.training.run.checkpoints.base import newest_step
from hyla.training.run.reading import read_finished
from hyla.training.run.sinks import MetricSink, TensorBoardSink, WandbSink


def say_if_too_late(path: Path, *, tensorboard: bool, wandb_project: str | None) -> None:
    """Say that a finished run has nothing left to record, where recording was asked for."""
    asked = ["--tensorboard"] * tensorboard + ["--wandb"] * (wandb_project is not None)
    if asked and path.exists() and read_finished(path) is not None:
        print(
            f"{path} is finished: {' and '.join(asked)} records steps while they are trained, and "
            "nothing here. Its metrics are in metrics.jsonl there.",
            file=sys.stderr,
        )


def open_sinks(
    config: dict[str, Any],
    path: Path,
    names: Sequence[str],
    *,
    tensorboard: bool,
    wandb_project: str | None,
) -> list[MetricSink]:
    """Open the sinks of the run in the directory `path`, which continues from its checkpoint."""
    sinks: list[MetricSink] = []
    if tensorboard:
        step = newest_step(path)
        first_step = 0 if step is None else step + 1
        sinks.append(TensorBoardSink(path / "tensorboard", names, first_step=first_step))
    if wandb_project is not None:
        sinks.append(
            WandbSink(path, project=wandb_project, name=path.name, run_id=path.name, config=config)
        )
    return sinks

"""The sinks that the options --tensorboard and --wandb ask for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyla.commands.shared.exits import UsageError
from hyla.training.run.checkpoints.base import newest_step
from hyla.training.run.sinks import MetricSink, TensorBoardSink, WandbSink


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
    try:
        if tensorboard:
            step = newest_step(path)
            first_step = 0 if step is None else step + 1
            sinks.append(TensorBoardSink(path / "tensorboard", names, first_step=first_step))
        if wandb_project is not None:
            sinks.append(
                WandbSink(
                    path, project=wandb_project, name=path.name, run_id=path.name, config=config
                )
            )
    except ImportError as error:
        raise UsageError(str(error)) from error
    return sinks

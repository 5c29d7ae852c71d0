"""Where metrics can go besides the run directory's own JSON lines: TensorBoard, Weights & Biases.

Both are optional (the extra ``tracking``) and imported when a sink is made.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hyla._optional import needed


@runtime_checkable
class MetricSink(Protocol):
    """Takes scalars named ``member/metric``, as `member_scalars` does."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record the scalars of one step."""
        ...

    def close(self) -> None:
        """Write out what is pending."""
        ...


def member_scalars(
    members: Sequence[str], metrics: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Name the per-member values of each metric as a `MetricSink` expects them.

    >>> member_scalars(["seed0", "seed1"], {"loss": [0.5, 0.25]})
    {'seed0/loss': 0.5, 'seed1/loss': 0.25}
    """
    return {
        f"{member}/{metric}": value
        for metric, values in metrics.items()
        for member, value in zip(members, values, strict=True)
    }


class TensorBoardSink:
    """One TensorBoard run per member, so that the members' curves share a chart."""

    def __init__(self, directory: Path, members: Sequence[str], *, first_step: int = 0) -> None:
        """Write under `directory`; points that an interrupted run left after `first_step` go."""
        with needed("tracking", "TensorBoard is not installed"):
            from torch.utils.tensorboard import SummaryWriter
        self._members = {
            member: SummaryWriter(str(directory / member), purge_step=first_step)
            for member in members
        }

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record the scalars of one step."""
        for name, value in scalars.items():
            member, _, metric = name.partition("/")
            self._members[member].add_scalar(metric, value, step)

    def close(self) -> None:
        """Write out what is pending."""
        for writer in self._members.values():
            writer.close()


class WandbSink:
    """One W&B run for the population; a resumed run continues it."""

    def __init__(
        self, directory: Path, *, project: str, name: str, run_id: str, config: dict[str, Any]
    ) -> None:
        """Open the run; `run_id`, the run directory's name, ties a resumed run to its beginning."""
        with needed("tracking", "Weights & Biases is not installed"):
            import wandb  # pyright: ignore[reportMissingImports]
        self._run = wandb.init(
            dir=str(directory), project=project, name=name, id=run_id, config=config, resume="allow"
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record the scalars of one step."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Write out what is pending."""
        self._run.finish()

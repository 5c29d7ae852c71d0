"""`train(config)`: a run from wherever it stands to its end."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hyla.training import branches, checkpoint
from hyla.training.cohort import Cohort
from hyla.training.config import TrainConfig
from hyla.training.crowding import Crowding
from hyla.training.events import Events
from hyla.training.population import Member, Population
from hyla.training.progress import Progress
from hyla.training.run_directory import RunDirectory, directory_of, read_branch_scales
from hyla.training.sinks import MetricSink, member_scalars
from hyla.training.stop import Stopped, StopRequest

SECONDS_BETWEEN_CHECKPOINTS = 60.0
MOST_TIME_SAVING = 0.05
"""Share of the time that may go into checkpoints; of many or large models they take long."""
# Between two looks at the clock and at signals; a GPU is kept busy that long without waiting.
SECONDS_BETWEEN_STOPS = 0.5


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """The run was asked to stop, has saved a checkpoint, and can be continued."""

    def __init__(self, message: str, reason: str | None):
        super().__init__(message)
        self.reason = reason
        """As `StopRequest.reason`: which signal, or "time limit"."""


def stopping_place(step: int, steps: int, reason: str | None) -> str:
    """Say where a run stopped, and what the same command will do."""
    if step < steps:
        rest = "the same command continues from there"
    else:  # a time limit that it exceeds would be met again and again
        rest = "the same command makes the final evaluation, which it has to do in one go"
    return f"stopped at step {step} of {steps} ({reason}); {rest}"


def run_name(config: TrainConfig) -> str:
    """Return the readable part of a run directory's name."""
    return f"{config.task_name}-{config.model.attention}"


def run_path(config: TrainConfig, root: Path | str) -> Path:
    """Return the directory of the run of `config` under `root`, whether or not it exists."""
    return directory_of(Path(root), run_name(config), config.to_tree())


def train(
    config: TrainConfig,
    *,
    root: Path | str = "runs",
    device: torch.device | str = "auto",
    max_seconds: float = float("inf"),
    sinks: Callable[[Path, Sequence[str]], Sequence[MetricSink]] = lambda path, names: (),
    compile: bool | None = None,
) -> dict[str, Any]:
    """Start or continue the run of `config` under `root` and return its summary.

    A finished run is not trained again. Raises `Interrupted` after a signal or `max_seconds`,
    with a checkpoint saved: the same call continues from it.
    """
    device = resolve_device(device)
    config.check_device(device)
    with RunDirectory.open(Path(root), run_name(config), config.to_tree(), device=device) as run:
        if run.finished is not None:
            return run.finished
        names = [str(member) for member in config.members]
        open_sinks = sinks(run.path, names)
        try:
            with (
                StopRequest(max_seconds=max_seconds) as stop,
                Progress(run.path.name, config.steps, names) as progress,
            ):
                return _Training(config, run, device, compile, stop, progress, open_sinks).run_all()
        finally:
            for sink in open_sinks:
                sink.close()


def resolve_device(device: torch.device | str) -> torch.device:
    """Turn "auto" into the GPU if there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but PyTorch sees no GPU; use cpu")
    return device


class _Training:
    """One process's share of a run."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory,
        device: torch.device,
        compile: bool | None,
        stop: StopRequest,
        progress: Progress,
        sinks: Sequence[MetricSink],
    ):
        self.config = config
        self.run = run
        self.device = device
        self.stop = stop
        self.progress = progress
        self.sinks = sinks
        self.names = [str(member) for member in config.members]
        self.events = Events(
            steps=config.steps, periods=(config.log_every, config.evaluation.every)
        )
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
            population.prepare(config.evaluation.splits)
            return population

        if device.type == "cuda":
            progress.message("compiling and capturing the training step")
        self.cohort = Cohort(config.members, build, progress.message)
        if device.type == "cuda":
            used = torch.cuda.max_memory_allocated(device) / 2**30
            progress.message(f"GPU memory of {len(config.members)} models: {used:.2f} GiB")
        self.headline = self.cohort.parts[0].objective.headline
        # Of all processes of this run: everything after the start-up, and the steps alone.
        self.seconds, self.training_seconds = 0.0, 0.0
        self.started = self.saved = time.monotonic()
        self.save_seconds = 0.0
        self.slice_steps = 1
        self.crowding = Crowding()
        self.diverged: set[str] = set()

    def run_all(self) -> dict[str, Any]:
        """Train to the end and return the summary, or raise `Interrupted`."""
        self._resume()
        step = self.cohort.step
        if step == 0 and read_branch_scales(self.run.path) is None:
            self._log_branches()
        self.started = time.monotonic() - self.seconds
        if self._evaluation_was_interrupted():
            self._report(step)
        while self.cohort.step < self.config.steps:
            event = self.events.after(self.cohort.step)
            self._train_until(event)
            if self.cohort.step == event:  # else the checkpoint holds the sums of the losses
                self._report(event)
            if self.stop.requested:
                self._save()
                raise self._interrupted()
            if self._checkpoint_is_due():
                self._save()
        return self._finish()

    def _resume(self) -> None:
        found = checkpoint.load_latest(self.run.path, self.run.fingerprint, self.progress.message)
        if found is None:
            self.run.rewind(-1)
            return
        try:
            self.cohort.load_state(found.tensors)
        except ValueError as error:
            raise checkpoint.CheckpointError(
                f"{found.path} cannot be continued: {error}. Move the run directory away to start "
                "anew, or use the version of hyla that wrote it."
            ) from error
        # Its losses still stand in the checkpoint, so whatever a later process logged of that step
        # is logged again: only then do the losses after it start from zero.
        logged = found.step - 1 if self._evaluation_was_interrupted() else found.step
        self.run.rewind(logged, last=self.events.last(logged), warn=self.progress.message)
        self.seconds = found.meta["seconds"]
        self.training_seconds = found.meta["training_seconds"]
        self.progress.message(f"continuing from step {found.step}")

    def _evaluation_was_interrupted(self) -> bool:
        """Whether the step reached is to be reported before the next one."""
        return self.cohort.step in self.events and self.cohort.has_unlogged_losses

    def _checkpoint_is_due(self) -> bool:
        interval = max(SECONDS_BETWEEN_CHECKPOINTS, self.save_seconds / MOST_TIME_SAVING)
        return time.monotonic() - self.saved > interval

    def _interrupted(self) -> Interrupted:
        where = stopping_place(self.cohort.step, self.config.steps, self.stop.reason)
        return Interrupted(where, self.stop.reason)

    def _train_until(self, target: int) -> None:
        """Train in slices short enough to notice a signal, or that a checkpoint is due."""
        step = self.cohort.step
        while step < target and not self.stop.requested:
            began = time.monotonic()
            count = min(self.slice_steps, target - step)
            self.cohort.train(count)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            elapsed = time.monotonic() - began
            self.training_seconds += elapsed
            if count == self.slice_steps and elapsed < SECONDS_BETWEEN_STOPS / 2:
                self.slice_steps *= 2
            step += count
            self.progress.update(step)
            advice = self.crowding.advice() if self.device.type == "cpu" else None
            if advice is not None:
                self.progress.message(advice)
            if self._checkpoint_is_due():
                return

    def _report(self, step: int) -> None:
        """Log the training loss and, where they are due, the metrics.

        Stopped during the evaluation, nothing is logged, and the resumed run reports this step.
        """
        record: dict[str, list[Any]] = {}
        if step % self.config.evaluation.every == 0 and step < self.config.steps:
            try:
                record = self._evaluate(self.config.evaluation.instances)
            except Stopped:
                return
        losses = self.cohort.mean_losses()
        self.progress.update(step, losses=losses)
        self._log(step, {"loss": losses} | record)
        self._announce_diverged()

    def _announce_diverged(self) -> None:
        for name, step in zip(self.names, self.cohort.diverged_at(), strict=True):
            if step >= 0 and name not in self.diverged:
                self.diverged.add(name)
                self.progress.message(f"{name} diverged at step {step} and is left there")

    def _evaluate(self, instances: int) -> dict[str, list[float]]:
        metrics = {
            f"{split}/{name}": values
            for split in self.config.evaluation.splits
            for name, values in self.cohort.evaluate(
                split, instances, before_batch=self.stop.check
            ).items()
        }
        headline = f"ood/{self.headline}"
        if headline in metrics:
            shown = {headline.replace("/", " "): metrics[headline]}
            self.progress.update(self.cohort.step, metrics=shown)
        return metrics

    def _log_branches(self) -> None:
        branches.log_branches(
            self.run,
            self.names,
            self.cohort.branch_scales(branches.INSTANCES),
            attention=str(self.config.model.attention),
            say=self.progress.message,
        )

    def _log(self, step: int, record: dict[str, list[float]]) -> None:
        self.seconds = time.monotonic() - self.started
        self.run.log({"step": step, "seconds": round(self.seconds, 3), **record})
        for sink in self.sinks:
            sink.write(step, member_scalars(self.names, record))

    def _save(self) -> None:
        began = time.monotonic()
        self.seconds = began - self.started
        self.run.sync()
        checkpoint.save(
            self.run.path,
            self.cohort.step,
            self.cohort.state(),
            {"seconds": self.seconds, "training_seconds": self.training_seconds},
            fingerprint=self.run.fingerprint,
        )
        self.saved = time.monotonic()
        self.save_seconds = self.saved - began

    def _finish(self) -> dict[str, Any]:
        """Score every member on the full evaluation sets and mark the run as complete."""
        self._save()  # a stop or kill during the long evaluation loses no training
        try:
            metrics = self._evaluate(self.config.evaluation.final_instances)
        except Stopped:
            raise self._interrupted() from None
        # A process killed after this point has left the record, with the same numbers.
        if not any(metrics.keys() <= record.keys() for record in self.run.metrics()[-1:]):
            self._log(self.config.steps, metrics)
        diverged = self.cohort.diverged_at()
        members = [
            {
                **vars(member),
                "diverged_at": diverged[i] if diverged[i] >= 0 else None,
                "metrics": {name: values[i] for name, values in metrics.items()},
            }
            for i, member in enumerate(self.config.members)
        ]
        self.run.finish(
            {
                "steps": self.config.steps,
                "seconds": time.monotonic() - self.started,
                "training_seconds": self.training_seconds,
                "members": members,
            }
        )
        assert self.run.finished is not None
        return self.run.finished

"""A run from wherever it stands to its end, whatever it trains, on one rank or many."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hyla.training.compiling import keep_compiled
from hyla.training.run import branches
from hyla.training.run.checkpoints.base import Checkpoints
from hyla.training.run.crowding import Crowding
from hyla.training.run.directory import RunDirectory
from hyla.training.run.errors import CheckpointError
from hyla.training.run.events import Events
from hyla.training.run.progress import Progress
from hyla.training.run.ranks import Ranks
from hyla.training.run.reading import directory_of, read_branch_scales, read_provenance
from hyla.training.run.sinks import MetricSink, member_scalars
from hyla.training.run.stop import Interrupted, Stopped, StopRequest
from hyla.training.run.trainee import RunConfig, Trainee

SECONDS_BETWEEN_CHECKPOINTS = 60.0
SECONDS_TO_THE_FIRST_CHECKPOINT = 5.0
"""Of a young run, each checkpoint doubles what was trained: a kill costs half of it at most."""
MOST_TIME_SAVING = 0.02
"""Share of the time that may go into checkpoints; of many or large models they take long."""
# Between two looks at the clock and at signals; a GPU is kept busy that long without waiting.
SECONDS_BETWEEN_STOPS = 0.5

REACHED = "the step that was asked for"
"""The reason of an interruption at `until`."""

OpenSinks = Callable[[Path, Sequence[str]], Sequence[MetricSink]]
Build = Callable[[RunDirectory | None, Callable[[str], None]], Trainee]


def run_name(config: RunConfig) -> str:
    """Return the readable part of a run directory's name."""
    return f"{config.to_tree()['task_name']}-{config.model.attention}"


def run_path(config: RunConfig, root: Path | str) -> Path:
    """Return the directory of the run of `config` under `root`, whether or not it exists."""
    return directory_of(Path(root), run_name(config), config.to_tree())


def run_to_the_end(
    config: RunConfig,
    build: Build,
    kind: type[Checkpoints],
    *,
    root: Path | str,
    ranks: Ranks,
    max_seconds: float,
    sinks: OpenSinks,
    until: int | None = None,
    screen: Console | None = None,
) -> dict[str, Any]:
    """Start or continue the run of `config` under `root` and return its summary.

    `build` makes what is trained; it gets the run's directory, on the first rank, which alone
    writes, and a function to say something with. `kind` is that of its checkpoints.

    A finished run is not trained again. Raises `Interrupted` after a signal, `max_seconds` or the
    step `until`, with a checkpoint saved: the same call continues from it. Progress is shown on
    `screen`, the terminal by default.
    """
    names = [str(member) for member in config.members]
    with ExitStack() as stack:
        stack.enter_context(ranks)
        held: list[RunDirectory] = []
        open_sinks: list[MetricSink] = []

        def open_run() -> tuple[Path, str, dict[str, Any] | None]:
            run = RunDirectory.open(
                Path(root), run_name(config), config.to_tree(), device=ranks.device
            )
            held.append(stack.enter_context(run))
            if run.finished is None:
                open_sinks.extend(sinks(run.path, names))
                for sink in open_sinks:
                    stack.callback(sink.close)
            return run.path, run.fingerprint, run.finished

        path, fingerprint, finished = ranks.on_first(open_run)
        if finished is not None:
            return finished
        run = held[0] if ranks.first else None
        on_cpu = ranks.device.type == "cpu"
        if not on_cpu:
            keep_compiled(Path(root))
        stop = stack.enter_context(StopRequest(max_seconds=max_seconds))
        shown = screen or Console(quiet=not ranks.first)
        progress = stack.enter_context(Progress(path.name, config.steps, names, shown))
        trainee = build(run, progress.message)
        stack.callback(trainee.close)
        return _Loop(
            config=config,
            trainee=trainee,
            run=run,
            checkpoints=kind(path, fingerprint, ranks=ranks, say=progress.message),
            ranks=ranks,
            stop=stop,
            progress=progress,
            sinks=open_sinks,
            crowding=stack.enter_context(Crowding(progress.message)) if on_cpu else None,
            until=config.steps if until is None else until,
        ).run_all()


@dataclass(kw_only=True)
class _Loop:
    """One process's share of a run."""

    config: RunConfig
    trainee: Trainee
    run: RunDirectory | None
    checkpoints: Checkpoints
    ranks: Ranks
    stop: StopRequest
    progress: Progress
    sinks: Sequence[MetricSink]
    crowding: Crowding | None
    until: int

    def __post_init__(self):
        self.names = [str(member) for member in self.config.members]
        periods = (self.config.log_every, self.config.evaluation.every)
        self.events = Events(steps=self.config.steps, periods=periods)
        # Of all processes of this run: everything after the start-up, and the steps alone.
        self.seconds, self.training_seconds = 0.0, 0.0
        self.started = self.saved = time.monotonic()
        self.save_seconds = 0.0
        self.slice_steps = 1
        # Since the last record, for the speed that it reports.
        self.record_steps, self.record_seconds = 0, 0.0
        self.diverged: set[str] = set()

    # --- the run ----------------------------------------------------------------------------------

    def run_all(self) -> dict[str, Any]:
        """Train to the end and return the summary, or raise `Interrupted`."""
        self._resume()
        if self.trainee.step == 0:
            self._log_branches()
        self.trainee.prepare()
        self.started = time.monotonic() - self.seconds
        if self._evaluation_was_interrupted():
            self._report()
        while not self._ended():
            event = self.events.after(self.trainee.step)
            stopping = self._train_until(event)
            if self.trainee.step == event:  # else the checkpoint holds the sums of the losses
                self._report()
                if self.until <= event < self.config.steps:
                    self.stop.request(REACHED)
                stopping = self._agree_to_stop()
            if stopping:
                self._save()
                raise self._interrupted()
            if self._checkpoint_is_due():
                self._save()
        return self._finish()

    def _ended(self) -> bool:
        """Whether no step is left, or no reason for one since the last report."""
        step = self.trainee.step
        reported = step in self.events and not self.trainee.has_unlogged_losses
        return step == self.config.steps or (reported and self.trainee.hopeless())

    def _interrupted(self) -> Interrupted:
        step, steps = self.trainee.step, self.config.steps
        if not self._ended():
            rest = "the same command continues from there"
        else:  # a time limit that it exceeds would be met again and again
            rest = "the same command makes the final evaluation, which it has to do in one go"
        reason = self.stop.reason or "another rank was asked to stop"
        return Interrupted(
            f"stopped at step {step} of {steps} ({reason}); {rest}", self.stop.reason
        )

    def _on_directory(self, use: Callable[[RunDirectory], Any]) -> Any:
        """Let the first rank use the run's directory, and all hear of it if that fails."""

        def on_first() -> Any:
            assert self.run is not None
            return use(self.run)

        return self.ranks.on_first(on_first)

    # --- training ---------------------------------------------------------------------------------

    def _train_until(self, target: int) -> bool:
        """Train in slices short enough to notice a signal; return whether to stop."""
        while self.trainee.step < target:
            if self._agree_to_stop():
                return True
            began = time.monotonic()
            count = min(self.slice_steps, target - self.trainee.step)
            self.trainee.train(count)
            if self.ranks.device.type == "cuda":
                torch.cuda.synchronize(self.ranks.device)
            elapsed = time.monotonic() - began
            self.training_seconds += elapsed
            self.record_seconds += elapsed
            self.record_steps += count
            if count == self.slice_steps and elapsed < SECONDS_BETWEEN_STOPS / 2:
                self.slice_steps *= 2
            self.progress.update(self.trainee.step)
            if self.crowding is not None:
                self.crowding.look()
            if self._checkpoint_is_due():
                break
        return False

    def _agree_to_stop(self) -> bool:
        """Let all ranks take slices of the same length, and stop together if one has to."""
        stopping, self.slice_steps = self.ranks.largest(int(self.stop.requested), self.slice_steps)
        return bool(stopping)

    # --- evaluation and records -------------------------------------------------------------------

    def _report(self) -> None:
        """Log the training loss, the speed and, where they are due, the metrics.

        Stopped during the evaluation, nothing is logged, and the resumed run reports this step.
        """
        step, metrics = self.trainee.step, {}
        if step % self.config.evaluation.every == 0 and step < self.config.steps:
            try:
                metrics = self._evaluate(final=False)
            except Stopped:
                return
        losses = self.trainee.mean_losses()
        self.progress.update(step, losses=losses)
        record = {"loss": losses} | self._speed() | metrics
        self._on_directory(lambda run: self._log(run, record))
        self._announce_diverged()

    def _announce_diverged(self) -> None:
        end = "training ends here" if self.trainee.hopeless() else "it is left there"
        for name, step in zip(self.names, self.trainee.diverged_at(), strict=True):
            if step is not None and name not in self.diverged:
                self.diverged.add(name)
                self.progress.message(f"{name} diverged at step {step}: {end}")

    def _speed(self) -> dict[str, list[float]]:
        """Return the speed since the last record, if anything was timed."""
        if not self.record_steps or not self.record_seconds:
            return {}
        speed = self.trainee.speed(self.record_steps, self.record_seconds)
        self.record_steps, self.record_seconds = 0, 0.0
        shown = {name.replace("_per_second", "/s"): values for name, values in speed.items()}
        self.progress.update(self.trainee.step, metrics=shown)
        return speed

    def _evaluate(self, *, final: bool) -> dict[str, list[float]]:
        metrics = self.trainee.evaluate(final=final, before_batch=self._before_batch)
        headline = self.trainee.headline
        if headline in metrics:
            shown = {headline.replace("/", " "): metrics[headline]}
            self.progress.update(self.trainee.step, metrics=shown)
        return metrics

    def _before_batch(self) -> None:
        if self._agree_to_stop():
            raise Stopped

    def _log_branches(self) -> None:
        if self._on_directory(lambda run: read_branch_scales(run.path)) is not None:
            return
        scales = self.trainee.branch_scales(branches.INSTANCES)
        attention = str(self.config.model.attention)
        self._on_directory(
            lambda run: branches.log_branches(
                run, self.names, scales, attention=attention, say=self.progress.message
            )
        )

    def _log(self, run: RunDirectory, record: dict[str, list[float]]) -> None:
        step = self.trainee.step
        seconds = round(time.monotonic() - self.started, 3)
        run.log({"step": step, "seconds": seconds, **self.trainee.progress(), **record})
        for sink in self.sinks:
            sink.write(step, member_scalars(self.names, record))

    # --- checkpoints ------------------------------------------------------------------------------

    def _resume(self) -> None:
        found = self.checkpoints.latest()
        if found is None:
            self._on_directory(self._start_over)
            return
        state = self.trainee.tensors()
        try:
            self.checkpoints.read(found, state)
        except ValueError as error:
            raise CheckpointError(
                f"{found.path} cannot be continued: {error}. Move the run directory away to start "
                "anew, or use the version of hyla that wrote it."
            ) from error
        self.trainee.resume(found.step, state, found.meta)
        self.seconds = found.meta["seconds"]
        self.training_seconds = found.meta["training_seconds"]
        # Its losses still stand in the checkpoint, so whatever a later process logged of that step
        # is logged again: only then do the losses after it start from zero.
        logged = found.step - 1 if self._evaluation_was_interrupted() else found.step
        last = self.events.last(logged)
        self._on_directory(lambda run: run.rewind(logged, last=last, warn=self.progress.message))
        self.progress.message(f"continuing from step {found.step}")

    def _start_over(self, run: RunDirectory) -> None:
        run.rewind(-1)
        if len(read_provenance(run.path)) > 1:
            self.progress.message("no checkpoint was saved before: starting again from step 1")

    def _evaluation_was_interrupted(self) -> bool:
        """Whether the step reached is to be reported before the next one."""
        return self.trainee.step in self.events and self.trainee.has_unlogged_losses

    def _checkpoint_is_due(self) -> bool:
        young = max(SECONDS_TO_THE_FIRST_CHECKPOINT, self.saved - self.started)
        interval = max(
            min(SECONDS_BETWEEN_CHECKPOINTS, young), self.save_seconds / MOST_TIME_SAVING
        )
        due = time.monotonic() - self.saved > interval
        return bool(self.ranks.largest(int(due))[0])

    def _save(self) -> None:
        began = time.monotonic()
        self._on_directory(lambda run: run.sync())
        clocks = {"seconds": began - self.started, "training_seconds": self.training_seconds}
        meta = clocks | self.trainee.meta()
        self.checkpoints.save(self.trainee.step, self.trainee.tensors(), meta)
        self.saved = time.monotonic()
        self.save_seconds = self.saved - began

    def _finish(self) -> dict[str, Any]:
        """Score every member on the full evaluation sets and mark the run as complete."""
        self._save()  # a stop or kill during the long evaluation loses no training
        try:
            metrics = self._evaluate(final=True)
        except Stopped:
            raise self._interrupted() from None
        diverged = self.trainee.diverged_at()
        members = [
            {
                **vars(member),
                "diverged_at": diverged[i],
                "metrics": {name: values[i] for name, values in metrics.items()},
            }
            for i, member in enumerate(self.config.members)
        ]

        def finish(run: RunDirectory) -> dict[str, Any] | None:
            # A process killed after this point has left the record, with the same numbers. One with
            # a training loss is that of a usual evaluation, on which a run may end early.
            last = [record for record in run.metrics()[-1:] if "loss" not in record]
            if not any(metrics.keys() <= record.keys() for record in last):
                self._log(run, metrics)
            run.finish(
                {
                    "steps": self.trainee.step,
                    **self.trainee.progress(),
                    "seconds": time.monotonic() - self.started,
                    "training_seconds": self.training_seconds,
                    **self.trainee.summary(self.training_seconds),
                    "members": members,
                }
            )
            return run.finished

        return self._on_directory(finish)

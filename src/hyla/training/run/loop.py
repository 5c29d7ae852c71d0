"""A run from wherever it stands to its end, whatever it trains, on one rank or many.

Several runs can go the same way together, with one trainee for the models of all: each has its own
directory, in which it looks as if it had been alone.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hyla.training.compiling import keep_compiled
from hyla.training.member import Member
from hyla.training.run import branches
from hyla.training.run.checkpoints.base import Checkpoint, Checkpoints
from hyla.training.run.crowding import Crowding
from hyla.training.run.directory import RunDirectory
from hyla.training.run.errors import ApartError, CheckpointError
from hyla.training.run.events import Events
from hyla.training.run.held import HeldRun, OpenSinks, check_together, open_directories
from hyla.training.run.progress import Progress
from hyla.training.run.ranks import Ranks
from hyla.training.run.reading import read_branch_scales, read_provenance
from hyla.training.run.sinks import MetricSink
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

Build = Callable[[RunDirectory | None, Callable[[str], None]], Trainee]


def runs_to_the_end(
    configs: Sequence[RunConfig],
    build: Build,
    kind: type[Checkpoints],
    *,
    root: Path | str,
    ranks: Ranks,
    max_seconds: float,
    sinks: OpenSinks,
    until: int | None = None,
    screen: Console | None = None,
) -> list[dict[str, Any]]:
    """Start or continue the runs of `configs` under `root` and return their summaries.

    `build` makes what is trained, the models of all; it gets the first run's directory, on the
    first rank, which alone writes, and a function to say something with. `kind` is that of the
    checkpoints.

    If all are finished, nothing is trained. Raises `Interrupted` after a signal, `max_seconds` or
    the step `until`, with a checkpoint saved: the same call continues from it; and `ApartError` if
    they do not stand at the same place. Progress is shown on `screen`, the terminal by default.
    """
    with ExitStack() as stack:
        stack.enter_context(ranks)
        held: list[tuple[RunDirectory, Sequence[MetricSink]]] = []

        def open_runs() -> list[tuple[Path, str, dict[str, Any] | None]]:
            held.extend(open_directories(configs, Path(root), sinks, stack))
            return [(run.path, run.fingerprint, run.finished) for run, _ in held]

        opened = ranks.on_first(open_runs)
        finished = [summary for *_, summary in opened if summary is not None]
        if len(finished) == len(configs):
            return finished
        if finished:
            done = ", ".join(path.name for path, _, summary in opened if summary is not None)
            raise ApartError(f"{done} finished before: leave it out, or train it by itself")
        on_cpu = ranks.device.type == "cpu"
        if not on_cpu:
            keep_compiled(Path(root))
        stop = stack.enter_context(StopRequest(max_seconds=max_seconds))
        shown = screen or Console(quiet=not ranks.first)
        names = [_name_among(configs, config, m) for config in configs for m in config.members]
        alone = len(opened) == 1
        title = opened[0][0].name if alone else f"{len(opened)} runs as one"
        progress = stack.enter_context(Progress(title, configs[0].steps, names, shown))

        def hold(place: int) -> HeldRun:
            config, (path, fingerprint, _) = configs[place], opened[place]
            directory, own_sinks = held[place] if ranks.first else (None, ())
            before = sum(len(other.members) for other in configs[:place])
            return HeldRun(
                config=config,
                directory=directory,
                checkpoints=kind(path, fingerprint, ranks=ranks, say=progress.message),
                sinks=own_sinks,
                place=slice(before, before + len(config.members)) if not alone else None,
            )

        runs = [hold(place) for place in range(len(configs))]
        checkpoints = [run.checkpoints.latest() for run in runs]
        check_together(checkpoints)
        trainee = build(runs[0].directory, progress.message)
        stack.callback(trainee.close)
        # Not before: what could not be built did not train, alone or together.
        ranks.on_first(lambda: _record_start([run for run, _ in held], ranks.device))
        return _Loop(
            runs=runs,
            checkpoints=[each for each in checkpoints if each is not None],
            names=names,
            trainee=trainee,
            ranks=ranks,
            stop=stop,
            progress=progress,
            crowding=stack.enter_context(Crowding(progress.message)) if on_cpu else None,
            until=configs[0].steps if until is None else until,
        ).run_all()


def _record_start(runs: Sequence[RunDirectory], device: torch.device) -> None:
    for run in runs:
        run.record_start(device, [other.path.name for other in runs if other is not run])


def _name_among(configs: Sequence[RunConfig], config: RunConfig, member: Member) -> str:
    return str(member) if len(configs) == 1 else f"{config.model.attention} {member}"


@dataclass(kw_only=True)
class _Loop:
    """One process's share of runs whose models train together."""

    runs: Sequence[HeldRun]
    checkpoints: Sequence[Checkpoint]
    """Those that they continue from, if they do."""
    names: Sequence[str]
    trainee: Trainee
    ranks: Ranks
    stop: StopRequest
    progress: Progress
    crowding: Crowding | None
    until: int

    def __post_init__(self):
        # How long they train and how they are watched is the same for all.
        self.config = self.runs[0].config
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

    def run_all(self) -> list[dict[str, Any]]:
        """Train to the end and return each run's summary, or raise `Interrupted`."""
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

    def _on_directories(self, use: Callable[[HeldRun, RunDirectory], Any]) -> list[Any]:
        """Let the first rank use each run's directory, and all hear of it if that fails."""

        def on_first() -> list[Any]:
            return [use(run, run.directory) for run in self.runs if run.directory is not None]

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
        self._on_directories(lambda run, _: self._log(run, record))
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
        def unknown(directory: RunDirectory) -> bool:
            return read_branch_scales(directory.path) is None

        if not any(self._on_directories(lambda _, directory: unknown(directory))):
            return
        scales = self.trainee.branch_scales(branches.INSTANCES)

        def log(run: HeldRun, directory: RunDirectory) -> None:
            if unknown(directory):
                attention, say = str(run.config.model.attention), self.progress.message
                own = run.own(scales)
                branches.log_branches(directory, run.names, own, attention=attention, say=say)

        self._on_directories(log)

    def _log(self, run: HeldRun, record: dict[str, list[float]]) -> None:
        seconds = round(time.monotonic() - self.started, 3)
        run.log(self.trainee.step, {"seconds": seconds, **self.trainee.progress()}, record)

    # --- checkpoints ------------------------------------------------------------------------------

    def _resume(self) -> None:
        if not self.checkpoints:
            self._on_directories(lambda _, directory: self._start_over(directory))
            return
        step, state = self.checkpoints[0].step, self.trainee.tensors()
        for run, checkpoint in zip(self.runs, self.checkpoints, strict=True):
            try:
                run.checkpoints.read(checkpoint, run.own_tensors(state))
            except ValueError as error:
                raise CheckpointError(
                    f"{checkpoint.path} cannot be continued: {error}. Move the run directory away "
                    "to start anew, or use the version of hyla that wrote it."
                ) from error
        metas = [checkpoint.meta for checkpoint in self.checkpoints]
        self.checkpoints = ()  # and the memory that they take
        self.trainee.resume(step, state, metas[0])
        self.seconds = max(meta["seconds"] for meta in metas)
        self.training_seconds = max(meta["training_seconds"] for meta in metas)
        # Its losses still stand in the checkpoint, so whatever a later process logged of that step
        # is logged again: only then do the losses after it start from zero.
        logged = step - 1 if self._evaluation_was_interrupted() else step
        last, warn = self.events.last(logged), self.progress.message
        self._on_directories(lambda _, directory: directory.rewind(logged, last=last, warn=warn))
        self.progress.message(f"continuing from step {step}")

    def _start_over(self, directory: RunDirectory) -> None:
        directory.rewind(-1)
        if len(read_provenance(directory.path)) > 1:
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
        self._on_directories(lambda _, directory: directory.sync())
        clocks = {"seconds": began - self.started, "training_seconds": self.training_seconds}
        meta, tensors = clocks | self.trainee.meta(), self.trainee.tensors()
        for run in self.runs:
            run.checkpoints.save(self.trainee.step, run.own_tensors(tensors), meta)
        self.saved = time.monotonic()
        self.save_seconds = self.saved - began

    def _finish(self) -> list[dict[str, Any]]:
        """Score every member on the full evaluation sets and mark the runs as complete."""
        self._save()  # a stop or kill during the long evaluation loses no training
        try:
            metrics = self._evaluate(final=True)
        except Stopped:
            raise self._interrupted() from None
        diverged = self.trainee.diverged_at()
        models = [
            {"diverged_at": diverged[i], "metrics": {name: v[i] for name, v in metrics.items()}}
            for i in range(len(self.names))
        ]
        common = {
            "steps": self.trainee.step,
            "models": len(self.names),
            **self.trainee.progress(),
            "seconds": time.monotonic() - self.started,
            "training_seconds": self.training_seconds,
            **self.trainee.summary(self.training_seconds),
        }

        def finish(run: HeldRun, _: RunDirectory) -> dict[str, Any] | None:
            if not run.has_final_record(metrics):
                self._log(run, metrics)
            return run.finish(common, models)

        return self._on_directories(finish)

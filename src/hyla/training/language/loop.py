"""`train_language(config, corpus)`: a run from wherever it stands to its end, on any ranks."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hyla.nn.decoders import count_parameters
from hyla.tasks.language import Corpus
from hyla.tasks.language.shards import TOKENIZER
from hyla.training import branches
from hyla.training.cohort import ModelTooLargeError
from hyla.training.events import Events
from hyla.training.language import checkpoints
from hyla.training.language.config import Execution, LanguageConfig, check_corpus
from hyla.training.language.evaluation import Validation
from hyla.training.language.ranks import Ranks
from hyla.training.language.steps import Steps
from hyla.training.language.throughput import peak_flops, utilisation
from hyla.training.loop import (
    MOST_TIME_SAVING,
    SECONDS_BETWEEN_CHECKPOINTS,
    SECONDS_BETWEEN_STOPS,
    Interrupted,
    stopping_place,
)
from hyla.training.precision import matmul_precision
from hyla.training.progress import Progress
from hyla.training.run_directory import RunDirectory, directory_of, read_branch_scales
from hyla.training.sinks import MetricSink, member_scalars
from hyla.training.stop import Stopped, StopRequest

DEFAULT_EXECUTION = Execution()

OpenSinks = Callable[[Path, Sequence[str]], Sequence[MetricSink]]


def language_run_name(config: LanguageConfig) -> str:
    """Return the readable part of a run directory's name."""
    return f"language-{config.model.attention}"


def language_run_path(config: LanguageConfig, root: Path | str) -> Path:
    """Return the directory of the run of `config` under `root`, whether or not it exists."""
    return directory_of(Path(root), language_run_name(config), config.to_tree())


def train_language(
    config: LanguageConfig,
    corpus: Corpus,
    *,
    root: Path | str = "runs",
    device: torch.device | str = "auto",
    max_seconds: float = math.inf,
    execution: Execution = DEFAULT_EXECUTION,
    sinks: OpenSinks = lambda path, names: (),
) -> dict[str, Any]:
    """Start or continue the run of `config` under `root` and return its summary.

    Under torchrun, every process calls this with the same arguments. A finished run is not trained
    again. Raises `Interrupted` after a signal or `max_seconds`, with a checkpoint saved: the same
    call continues from it, on this or another number of ranks.
    """
    check_corpus(config, corpus)
    ranks = Ranks(device)
    check_execution(config, execution, ranks)
    name = str(config.member)
    with ExitStack() as stack:
        stack.enter_context(ranks)

        def open_run() -> tuple[Path, str, dict[str, Any] | None]:
            opened = RunDirectory.open(
                Path(root), language_run_name(config), config.to_tree(), device=ranks.device
            )
            runs.append(stack.enter_context(opened))
            return opened.path, opened.fingerprint, opened.finished

        runs: list[RunDirectory] = []  # on the first rank, which alone writes
        path, fingerprint, finished = ranks.on_first(open_run)
        if finished is not None:
            return finished
        shown = Console() if ranks.first else Console(quiet=True)
        progress = stack.enter_context(Progress(path.name, config.steps, [name], shown))
        stop = stack.enter_context(StopRequest(max_seconds=max_seconds))
        run = runs[0] if ranks.first else None
        open_sinks = list(sinks(path, [name])) if ranks.first else []
        for sink in open_sinks:
            stack.callback(sink.close)
        try:
            training = _Training(config, corpus, run, execution, ranks, stop, progress, open_sinks)
            stack.callback(training.steps.model.release)
            with matmul_precision(config.precision):
                return training.run_all(path, fingerprint)
        except torch.cuda.OutOfMemoryError as error:
            raise ModelTooLargeError(
                "The GPU's memory is full: use a smaller micro_batch, recompute, or strategy "
                "'fsdp' on several GPUs. Run the same command with one of these to continue."
            ) from error


def check_execution(config: LanguageConfig, execution: Execution, ranks: Ranks) -> None:
    """Raise a ValueError if these ranks cannot compute the run in this way."""
    if config.batch_size % ranks.size:
        raise ValueError(
            f"batch_size {config.batch_size} does not divide among {ranks.size} ranks; "
            f"use a multiple of {ranks.size}"
        )
    execution.accumulation(config.batch_size // ranks.size)
    if execution.strategy == "fsdp" and not ranks.launched:
        raise ValueError("strategy 'fsdp' needs torchrun, as in `torchrun --nproc-per-node 2 ...`")
    if execution.backend == "fused" and ranks.device.type != "cuda":
        raise ValueError(f"backend 'fused' needs a GPU, and the device is {ranks.device}")


class _Training:
    """One process's share of a run."""

    def __init__(
        self,
        config: LanguageConfig,
        corpus: Corpus,
        run: RunDirectory | None,
        execution: Execution,
        ranks: Ranks,
        stop: StopRequest,
        progress: Progress,
        sinks: Sequence[MetricSink],
    ):
        self.config, self.corpus, self.run = config, corpus, run
        self.ranks, self.stop, self.progress, self.sinks = ranks, stop, progress, sinks
        self.name = str(config.member)
        self.events = Events(
            steps=config.steps, periods=(config.log_every, config.evaluation.every)
        )
        self.steps = Steps(config, corpus.tokens("train"), execution, ranks)
        length = config.model.sequence_length
        self.validation = Validation(corpus, sequence_length=length, ranks=ranks)
        peak = peak_flops(ranks.device, config.precision)
        self.peak = None if peak is None else peak * ranks.size
        self.diverged_at: int | None = None
        # Of all processes of this run: everything after the start-up, and the steps alone.
        self.seconds, self.training_seconds = 0.0, 0.0
        self.started = self.saved = time.monotonic()
        self.save_seconds = 0.0
        self.slice_steps = 1
        # Since the last record, for the speed that it reports.
        self.record_steps, self.record_seconds = 0, 0.0

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self.steps.number

    # --- the run ------------------------------------------------------------------------------

    def run_all(self, path: Path, fingerprint: str) -> dict[str, Any]:
        """Train to the end and return the summary, or raise `Interrupted`."""
        self.path, self.fingerprint = path, fingerprint
        self.ranks.on_first(self._keep_tokenizer)
        size = count_parameters(self.steps.model.transformer)
        self.progress.message(f"{self.config.model.attention}: {size}")
        self._resume()
        if self.step == 0 and self.ranks.on_first(lambda: read_branch_scales(path)) is None:
            self._log_branches()
        if self.steps.compiled:
            self.progress.message("compiling")
            self.steps.prepare()
        self.started = time.monotonic() - self.seconds
        if self._evaluation_was_interrupted():
            self._report()
        while self.step < self.config.steps and self.diverged_at is None:
            event = self.events.after(self.step)
            stopping = self._train_until(event)
            if self.step == event:  # else the checkpoint holds the sums of the losses
                self._report()
                stopping = self._agree_to_stop()
            if stopping:
                self._save()
                raise self._interrupted()
            if self._checkpoint_is_due():
                self._save()
        return self._finish()

    def _keep_tokenizer(self) -> None:
        """Put the tokenizer into the run directory, which can then do without the corpus."""
        assert self.run is not None
        self.run.keep(TOKENIZER, self.corpus.tokenizer_path.read_bytes())

    def _interrupted(self) -> Interrupted:
        reason = self.stop.reason or "another rank was asked to stop"
        where = stopping_place(self.step, self.config.steps, reason)
        return Interrupted(where, self.stop.reason)

    # --- training -----------------------------------------------------------------------------

    def _train_until(self, target: int) -> bool:
        """Train in slices short enough to notice a signal; return whether to stop."""
        while self.step < target:
            if self._agree_to_stop():
                return True
            began = time.monotonic()
            count = min(self.slice_steps, target - self.step)
            for _ in range(count):
                self.steps.take()
            if self.ranks.device.type == "cuda":
                torch.cuda.synchronize(self.ranks.device)
            elapsed = time.monotonic() - began
            self.training_seconds += elapsed
            self.record_seconds += elapsed
            self.record_steps += count
            if count == self.slice_steps and elapsed < SECONDS_BETWEEN_STOPS / 2:
                self.slice_steps *= 2
            self.progress.update(self.step)
            if self._checkpoint_is_due():
                return False
        return False

    def _agree_to_stop(self) -> bool:
        """Let all ranks take slices of the same length, and stop together if one has to."""
        stopping, self.slice_steps = self.ranks.largest(int(self.stop.requested), self.slice_steps)
        return bool(stopping)

    # --- evaluation and records -----------------------------------------------------------------

    def _report(self) -> None:
        """Log the training loss, the speed and, where it is due, the validation metrics.

        Stopped during the evaluation, nothing is logged, and the resumed run reports this step.
        """
        record: dict[str, list[Any]] = {}
        step, config = self.step, self.config
        if step % config.evaluation.every == 0 and step < config.steps:
            try:
                record = self._evaluate(config.evaluation.sequences)
            except Stopped:
                return
        loss = self.steps.mean_loss()
        if not math.isfinite(loss):
            self.diverged_at = step
            self.progress.message(f"the loss was not finite at step {step}: training ends there")
        self.progress.update(step, losses=[loss])
        self._log({"loss": [loss]} | self._speed() | record)

    def _speed(self) -> dict[str, list[Any]]:
        """Return tokens a second and utilisation since the last record, if anything was timed."""
        if not self.record_steps or not self.record_seconds:
            return {}
        rate = self.record_steps * self.config.tokens_per_step / self.record_seconds
        self.record_steps, self.record_seconds = 0, 0.0
        speed = {"tokens_per_second": [rate]}
        mfu = utilisation(self.config.model, rate, self.peak)
        if mfu is not None:
            speed["mfu"] = [mfu]
        self.progress.update(self.step, metrics={"tokens/s": [rate]})
        return speed

    def _evaluate(self, sequences: int) -> dict[str, list[Any]]:
        def before_batch() -> None:
            if self._agree_to_stop():
                raise Stopped

        found = self.validation.metrics(
            self.steps.losses,
            sequences,
            batch_size=self.steps.micro_batch,
            before_batch=before_batch,
        )
        self.progress.update(self.step, metrics={"validation loss": [found["loss"]]})
        return {f"validation/{name}": [value] for name, value in found.items()}

    def _log_branches(self) -> None:
        blocks = self.steps.branch_scales(branches.INSTANCES)
        if self.run is not None:
            branches.log_branches(
                self.run,
                [self.name],
                [blocks],
                attention=str(self.config.model.attention),
                say=self.progress.message,
            )

    def _log(self, record: dict[str, list[Any]]) -> None:
        self.seconds = time.monotonic() - self.started
        if self.run is None:
            return
        tokens = self.step * self.config.tokens_per_step
        clock = {"step": self.step, "seconds": round(self.seconds, 3), "tokens": tokens}
        self.run.log(clock | record)
        for sink in self.sinks:
            sink.write(self.step, member_scalars([self.name], record))

    # --- checkpoints ----------------------------------------------------------------------------

    def _resume(self) -> None:
        found = self.ranks.on_first(
            lambda: checkpoints.find_latest(self.path, self.fingerprint, self.progress.message)
        )
        if found is None:
            if self.run is not None:
                self.run.rewind(-1)
            return
        checkpoints.load(found, self.steps.tensors(), distributed=self.ranks.size > 1)
        self.steps.continue_from(found.step, found.meta["losses"])
        self.seconds, self.training_seconds = (
            found.meta[name] for name in ("seconds", "training_seconds")
        )
        self.diverged_at = found.meta["diverged_at"]
        if self.run is not None:
            # Its loss still stands in the checkpoint, so whatever a later process logged of that
            # step is logged again: only then do the losses after it start from zero.
            logged = found.step - 1 if self._evaluation_was_interrupted() else found.step
            self.run.rewind(logged, last=self.events.last(logged), warn=self.progress.message)
        self.progress.message(f"continuing from step {found.step}")

    def _evaluation_was_interrupted(self) -> bool:
        """Whether the step reached is to be reported before the next one."""
        return self.step in self.events and self.steps.has_unlogged_losses

    def _checkpoint_is_due(self) -> bool:
        interval = max(SECONDS_BETWEEN_CHECKPOINTS, self.save_seconds / MOST_TIME_SAVING)
        due = time.monotonic() - self.saved > interval
        return bool(self.ranks.largest(int(due))[0])

    def _save(self) -> None:
        began = time.monotonic()
        self.seconds = began - self.started
        if self.run is not None:
            self.run.sync()
        checkpoints.save(
            self.path,
            self.step,
            self.steps.tensors(),
            {
                "seconds": self.seconds,
                "training_seconds": self.training_seconds,
                "losses": self.steps.losses_so_far(),
                "diverged_at": self.diverged_at,
            },
            fingerprint=self.fingerprint,
            ranks=self.ranks,
        )
        self.saved = time.monotonic()
        self.save_seconds = self.saved - began

    def _finish(self) -> dict[str, Any]:
        """Score the model on the whole validation text and mark the run as complete."""
        self._save()  # a stop or kill during the evaluation loses no training
        try:
            metrics = self._evaluate(self.config.evaluation.final_sequences)
        except Stopped:
            raise self._interrupted() from None
        return self.ranks.on_first(lambda: self._mark_finished(metrics))

    def _mark_finished(self, metrics: dict[str, list[Any]]) -> dict[str, Any]:
        assert self.run is not None
        # A process killed after this point has left the record, with the same numbers.
        if not any(metrics.keys() <= record.keys() for record in self.run.metrics()[-1:]):
            self._log(metrics)
        counts = count_parameters(self.steps.model.transformer)
        tokens = self.step * self.config.tokens_per_step
        self.run.finish(
            {
                "steps": self.step,
                "tokens": tokens,
                "seconds": time.monotonic() - self.started,
                "training_seconds": self.training_seconds,
                "tokens_per_second": tokens / max(self.training_seconds, 1e-9),
                "parameters": counts.total,
                "parameters_without_embeddings": counts.without_embeddings,
                "members": [
                    {
                        **vars(self.config.member),
                        "diverged_at": self.diverged_at,
                        "metrics": {name: values[0] for name, values in metrics.items()},
                    }
                ],
            }
        )
        assert self.run.finished is not None
        return self.run.finished

"""Populations one after the other, or several at once: by workers, for instance on several GPUs.

Each worker is a process that trains one population after the other. Their output goes to files;
this process deals out the work, says what happens, and passes a stop on to them.
"""

import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.connection import Connection, wait
from pathlib import Path

from hyla.lab.plan.shares import Share
from hyla.results.scoring import score_rest
from hyla.results.trimming import drop_optimiser_state
from hyla.training import Interrupted, train, train_together
from hyla.training.devices import free_memory
from hyla.training.run.checkpoints.base import newest_step
from hyla.training.run.errors import (
    ApartError,
    CheckpointError,
    RunBusyError,
    RunDirectoryError,
)
from hyla.training.run.reading import read_finished
from hyla.training.run.stop import StopRequest

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_LINES = 30.0
# A worker that is compiling notices a stop afterwards; what it has saved survives being killed.
_SECONDS_TO_STOP = 30.0
_ONE_AFTER_THE_OTHER = "not as one, but one after the other"
# What a worker answers of a population.
_FINISHED, _BUSY, _FAILED = "finished", "busy", "failed"


@dataclass(kw_only=True)
class Trained:
    """What came of shares that were to be trained, beside those that are finished now."""

    failures: list[str] = field(default_factory=list)
    """A line for each that failed."""
    busy: list[Share] = field(default_factory=list)
    """Those that other processes are training."""


def complete(share: Share, *, device: str, max_seconds: float = math.inf) -> str:
    """Train a share and score it on all that is asked for, as far as it is not; say how it went.

    What only a longer training would need is dropped.
    """
    deadline = time.monotonic() + max_seconds
    summary = read_finished(share.path)
    if summary is None:
        root = share.path.parent
        summary = train(share.config, root=root, device=device, max_seconds=max_seconds)
    drop_optimiser_state(share.path)
    asked = share.method.config.evaluation
    score_rest(share.path, asked, device=device, max_seconds=deadline - time.monotonic())
    return f"finished in {summary['seconds']:.0f} s"


def trim(shares: Sequence[Share]) -> None:
    """Trim finished shares whose process was killed before it came to that, as far as one can."""
    for share in shares:
        with suppress(RunDirectoryError, CheckpointError):  # somebody has it, or none may write
            drop_optimiser_state(share.path)


def train_shares(
    companies: Sequence[Sequence[Share]],
    *,
    root: Path,
    device: str,
    workers: int,
    max_seconds: float,
    say: Callable[[str], None],
) -> Trained:
    """Train shares with `workers` processes, each alone, or in this one, each company as one.

    A population that fails does not keep the others from being trained. Raises `Interrupted` after
    a signal or `max_seconds`, with everything so far on disk.
    """
    if workers == 1:
        return _train_here(companies, device=device, max_seconds=max_seconds, say=say)
    shares = list(chain.from_iterable(companies))
    waiting = list(enumerate(shares, start=1))
    outcome = Trained()
    with StopRequest(max_seconds=max_seconds) as stop:
        crew = [_Worker(slot, workers, root, device) for slot in range(min(workers, len(shares)))]
        try:
            spoken = time.monotonic()
            while crew and not stop.requested:
                for worker in crew:
                    if worker.share is None and waiting:
                        number, share = waiting.pop(0)
                        say(f"population {number} of {len(shares)}: {share.method} ({share.state})")
                        worker.give(share)
                crew = [worker for worker in crew if worker.share is not None]
                for connection in wait([w.connection for w in crew], _SECONDS_BETWEEN_LOOKS):
                    if stop.requested:  # Ctrl-C reaches the workers too, and they just leave
                        break
                    worker = next(w for w in crew if w.connection is connection)
                    _take_answer(worker, outcome, say)
                    if not worker.process.is_alive():  # it died: another takes its place
                        worker.close()
                        crew[crew.index(worker)] = _Worker(worker.slot, workers, root, device)
                if time.monotonic() - spoken > _SECONDS_BETWEEN_LINES:
                    spoken = time.monotonic()
                    say("; ".join(w.progress(w.share) for w in crew if w.share is not None))
        finally:
            _dismiss(crew)
    if stop.requested:
        raise Interrupted(
            f"stopped ({stop.reason}) with {len(waiting) + len(crew)} of {len(shares)} populations "
            "unfinished; the same command continues them",
            stop.reason,
            outcome.failures,
        )
    return outcome


def _train_here(
    companies: Sequence[Sequence[Share]],
    *,
    device: str,
    max_seconds: float,
    say: Callable[[str], None],
) -> Trained:
    deadline = time.monotonic() + max_seconds
    outcome = Trained()
    count, number = sum(len(company) for company in companies), 1
    for company in companies:
        place = _place(company, number, count)
        number += len(company)
        say(f"{place} ({company[0].state})")
        try:
            if len(company) > 1:
                _train_as_one(company, device, deadline, say)
            for share in company:
                _complete_here(share, device, deadline, outcome, say)
        except Interrupted as stop:
            raise Interrupted(f"{place}: {stop}", stop.reason, outcome.failures) from stop
    return outcome


def _place(company: Sequence[Share], number: int, count: int) -> str:
    """Say which of all populations these are."""
    methods = " + ".join(str(share.method) for share in company)
    if len(company) == 1:
        return f"population {number} of {count}: {methods}"
    return f"populations {number} to {number + len(company) - 1} of {count}, as one: {methods}"


def _train_as_one(
    company: Sequence[Share], device: str, deadline: float, say: Callable[[str], None]
) -> None:
    """Train a company, and leave its populations to be trained alone where that cannot be done."""
    try:
        train_together(
            [share.config for share in company],
            root=company[0].path.parent,
            device=device,
            max_seconds=deadline - time.monotonic(),
        )
    except Interrupted:
        raise
    except (RunBusyError, ApartError) as error:
        say(f"{_ONE_AFTER_THE_OTHER}: {error}")
    except Exception as error:
        traceback.print_exc()
        say(f"{_ONE_AFTER_THE_OTHER}: {_in_a_line(error)}")
    free_memory()


def _complete_here(
    share: Share, device: str, deadline: float, outcome: Trained, say: Callable[[str], None]
) -> None:
    """Train, as far as it is not, and score a share; note what is not finished."""
    try:
        complete(share, device=device, max_seconds=deadline - time.monotonic())
    except RunBusyError as error:
        say(_left_to_another(error))
        outcome.busy.append(share)
    except Interrupted:
        raise
    except Exception as error:
        traceback.print_exc()
        outcome.failures.append(_failure(share, _in_a_line(error)))
        say(outcome.failures[-1])


def _left_to_another(error: RunBusyError) -> str:
    return f"another process is training it: {error}"


def _failure(share: Share, message: str) -> str:
    return f"{share.method} ({share.path.name}): {message}"


def _in_a_line(error: Exception) -> str:
    """Return an error's first line: a compiler's last ones say how to learn more."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


class _Worker:
    """A process, the population it is on, and the line to it."""

    def __init__(self, slot: int, workers: int, root: Path, device: str):
        self.slot = slot
        self.share: Share | None = None
        # CUDA does not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        log = root / "logs" / f"worker-{slot}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.process = context.Process(
            target=_work, args=(theirs, slot, workers, device, log), daemon=True
        )
        self.process.start()
        theirs.close()  # or its end would never be noticed here

    def give(self, share: Share) -> None:
        self.share = share
        self.connection.send(share)

    @staticmethod
    def progress(share: Share) -> str:
        step = newest_step(share.path) or 0
        return f"{share.method}: {step:,} of {share.config.steps:,} saved"

    def close(self) -> None:
        self.connection.close()
        self.process.join()


def _take_answer(worker: _Worker, outcome: Trained, say: Callable[[str], None]) -> None:
    """Say how the worker's population went, and note what is not finished."""
    share, worker.share = worker.share, None
    assert share is not None
    try:
        state, message = worker.connection.recv()
    except EOFError:
        worker.process.join()
        state, message = _FAILED, f"its process ended with code {worker.process.exitcode}"
    say(f"{share.method}: {message}")
    if state == _FAILED:
        outcome.failures.append(_failure(share, message))
    elif state == _BUSY:
        outcome.busy.append(share)


def _dismiss(crew: Sequence[_Worker]) -> None:
    """Let workers save and leave; end those that do not."""
    deadline = time.monotonic() + _SECONDS_TO_STOP
    for worker in crew:
        worker.process.terminate()  # SIGTERM, which a run answers with a checkpoint
    for worker in crew:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
        worker.close()


def _work(orders: Connection, slot: int, workers: int, device: str, log: Path) -> None:
    """Train what is ordered until the line is closed, in a process of its own."""
    # Ctrl-C reaches the whole group: here it is the parent's to pass on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with log.open("a", buffering=1, encoding="utf-8") as file:
        sys.stdout = sys.stderr = file
        _take_own_part_of_the_machine(slot, workers)
        while True:
            try:
                share = orders.recv()
            except EOFError:
                return
            try:
                answer = _FINISHED, complete(share, device=device)
            except Interrupted:
                return
            except RunBusyError as error:
                answer = _BUSY, _left_to_another(error)
            except Exception as error:  # one population's failure is not the others'
                traceback.print_exc()
                answer = _FAILED, f"{_in_a_line(error)} (see {log})"
            orders.send(answer)


def _take_own_part_of_the_machine(slot: int, workers: int) -> None:
    import torch

    cores = os.cpu_count() or 1
    torch.set_num_threads(max(1, cores // workers))
    if torch.cuda.is_available() and torch.cuda.device_count() > 1:
        torch.cuda.set_device(slot % torch.cuda.device_count())

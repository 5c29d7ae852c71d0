"""Plan, launch, collect: the one way from what is asked to tables, here or on a cluster."""

import dataclasses
import functools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import torch

from hyla._errors import BusyError, UnfinishedError, check_at_least_one, check_max_seconds
from hyla.lab.companies import companies
from hyla.lab.methods import Method
from hyla.lab.plan.population_size import measured_size
from hyla.lab.plan.shares import Share, finished_rows, plan
from hyla.lab.plan.slurm import SlurmJobs, SlurmOptions, submit, wait_for
from hyla.lab.plan.workers import train_shares
from hyla.results.runs import Row
from hyla.results.selection import best_hyperparameters, hyperparameters_of
from hyla.training import Interrupted, TrainConfig
from hyla.training.devices import resolve_device


class Watch:
    """Whoever waits, and is told what happens."""

    def __init__(self, say: Callable[[str], None] = print):
        self.say = say

    def queue(self, jobs: SlurmJobs, states: Sequence[str]) -> None:
        """Show the state of every job in Slurm's queue, as it is now."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is finished of a method."""

    method: Method
    rows: Sequence[Row]
    """Of each model: settings, final metrics, origin, and whether it was `picked`: its
    hyper-parameters are the best on validation. None is picked before all are finished, for a
    choice among some of the settings would not be the one that was asked for."""
    complete: bool

    @property
    def picked(self) -> list[Row]:
        """The models of all seeds at the best hyper-parameters, by validation."""
        return [row for row in self.rows if row["picked"]]


@dataclass(kw_only=True)
class Outcome:
    """What is there of what was asked for, and why not all of it."""

    shares: Sequence[Share]
    failures: Sequence[str] = ()
    """A line for each population that could not be trained."""
    unmeasured: list[str] = field(default_factory=list)
    """A line for each measurement or figure that failed."""
    busy: Sequence[Share] = ()
    """What other processes are training."""
    stopped: Interrupted | None = None
    """Why it ended before its end; the same call continues."""
    submitted: bool = False
    """Whether jobs are in Slurm's queue that nobody waits for."""

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of this call or of jobs that it submitted."""
        return self.stopped is None and not self.submitted

    @functools.cached_property
    def found(self) -> list[Found]:
        """What is finished, by method."""
        methods: dict[int, list[Share]] = {}
        for share in self.shares:
            methods.setdefault(id(share.method), []).append(share)
        return [_found(shares) for shares in methods.values()]

    @property
    def rows(self) -> list[Row]:
        """A row for each finished model: settings, final metrics, origin, `picked`."""
        return [row for found in self.found for row in found.rows]

    def check(self) -> None:
        """Raise an error that says what is missing, and what to do about it, if anything is."""
        if self.stopped is not None:
            raise self.stopped
        if self.submitted:
            return
        reasons = "".join(f"\n  {line}" for line in (*self.failures, *self.unmeasured))
        left = {share.path for share in self.shares if not share.finished}
        count = f"{len(left)} of {len(self.shares)} populations"
        if left and not reasons and left <= {share.path for share in self.busy}:
            raise BusyError(
                f"{count} are being trained by other processes; the same command collects them "
                "later"
            )
        if left:
            raise UnfinishedError(
                f"{count} are not finished; the same command continues them.{reasons}"
            )
        if self.unmeasured:
            raise UnfinishedError(
                f"all is trained, but not all could be measured and drawn:{reasons}"
            )


def _found(shares: Sequence[Share]) -> Found:
    method, rows = shares[0].method, finished_rows(shares)
    complete = all(share.finished for share in shares)
    headline = method.config.build_task().headline
    best = best_hyperparameters(rows, headline) if complete else None
    rows = [{**row, "picked": hyperparameters_of(row) == best} for row in rows]
    return Found(method=method, rows=rows, complete=complete)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Where and how populations are trained."""

    root: Path = Path("runs")
    """Folder of the run directories; on a cluster, one that all nodes share."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes the GPU if there is one."""
    workers: int = 1
    """Processes that train at the same time: one or more for each GPU."""
    max_population: int | None = None
    """Most models that train together as one population. Without it, on a GPU as many as are
    fastest, measured once for each shape if there is much to train; else 64, in the lab 24."""
    usual_population: ClassVar[int] = 64
    max_seconds: float | None = None
    """Stop after this time, with everything saved (launcher local)."""
    launcher: Literal["local", "slurm"] = "local"
    """local: on this machine; slurm: a job array, one job per population."""
    wait: bool = True
    """With Slurm, wait for the jobs and collect; --no-wait returns after submission."""


@dataclass(frozen=True, kw_only=True)
class Job(Launch, ABC):
    """Something to train, and where and how."""

    slurm: SlurmOptions | None = None
    """What each of Slurm's jobs asks for."""
    started: float = field(default_factory=time.monotonic, init=False, compare=False)
    """When the clock of `max_seconds` began: before the plan, which may measure for minutes."""

    def __post_init__(self):
        if self.launcher not in ("local", "slurm"):
            raise ValueError(f"launcher must be 'local' or 'slurm', got {self.launcher!r}")
        check_at_least_one(workers=self.workers, max_population=self.max_population)
        # An option of the other launcher, which this one would ignore:
        if self.launcher == "slurm":
            if self.max_seconds is not None:
                raise ValueError("--max-seconds is for --launcher local; here, use --slurm.time")
            if self.workers != 1:
                raise ValueError(
                    "--workers is for --launcher local; on Slurm, populations are jobs"
                )
            return
        for name, given in (("--slurm.*", self.slurm is not None), ("--no-wait", not self.wait)):
            if given:
                raise ValueError(f"{name} is for --launcher slurm, and here nothing is submitted")
        check_max_seconds(self.max_seconds)

    @functools.cached_property
    def methods(self) -> list[Method]:
        """What is to be trained, each method once."""
        return self.asked()

    @abstractmethod
    def asked(self) -> list[Method]:
        """Return the methods; a ValueError if what is asked for makes no sense."""

    @abstractmethod
    def collect(self, outcome: Outcome, *, trained: bool, deadline: float, watch: Watch) -> None:
        """Put what is finished into tables; `trained` says whether anything was, just now."""

    def check_device(self) -> None:
        """Raise a ValueError if the models cannot be computed on the device, or it is not here."""
        if self.launcher == "local":
            device = resolve_device(self.device)
            for method in self.methods:
                method.config.check_device(device)

    def check_origins(self, shares: Sequence[Share]) -> None:
        """Raise a ValueError if what is collected could not say where it comes from."""

    def plan(self, measuring: Callable[[str], None] | None = None) -> list[Share]:
        """Return the populations, each as it is now.

        With `measuring`, which is told of it, their size is measured where that pays.
        """
        return plan(self.methods, self.root, lambda config: self._together(config, measuring))

    def _together(self, config: TrainConfig, measuring: Callable[[str], None] | None) -> int:
        if self.max_population is not None:
            return self.max_population
        if self.launcher == "local" and self.device != "cpu" and torch.cuda.is_available():
            size = measured_size(config, self.root, torch.device("cuda"), measuring)
            if size is not None:
                return size
        return self.usual_population

    def trim(self, finished: Sequence[Share]) -> None:
        """Trim what a kill left untrimmed; not here, where runs may be of `hyla train`."""

    def companies(self, shares: Sequence[Share], device: torch.device) -> list[list[Share]]:
        """Return what trains as one population: where one process has a GPU, more than one."""
        if device.type == "cpu" or self.launcher != "local" or self.workers > 1:
            return [[share] for share in shares]
        return companies(shares, lambda config: self._together(config, measuring=None))

    def run(self, watch: Watch, shares: Sequence[Share] | None = None) -> Outcome:
        """Train what is missing, and collect what is finished; `shares` is a plan just made.

        What failed, is busy, or was stopped, the outcome says: see `Outcome.check`.
        """
        self.check_device()
        deadline = self.started + (math.inf if self.max_seconds is None else self.max_seconds)
        outcome = Outcome(shares=self.plan(watch.say) if shares is None else shares)
        self.check_origins(outcome.shares)
        unfinished = [share for share in outcome.shares if not share.finished]
        self.trim([share for share in outcome.shares if share.finished])
        if unfinished and self.launcher == "slurm":
            found = self._train_on_slurm(unfinished, watch)
            if found is None:
                return dataclasses.replace(outcome, submitted=True)
            outcome.failures = found
        elif unfinished:
            try:
                trained = train_shares(
                    self.companies(unfinished, resolve_device(self.device)),
                    root=self.root,
                    device=self.device,
                    workers=self.workers,
                    max_seconds=deadline - time.monotonic(),
                    say=watch.say,
                )
                outcome.failures, outcome.busy = trained.failures, trained.busy
            except Interrupted as stop:
                outcome.stopped = stop
        if unfinished:
            outcome.shares = self.plan()
        self.collect(outcome, trained=bool(unfinished), deadline=deadline, watch=watch)
        return outcome

    def _train_on_slurm(self, shares: Sequence[Share], watch: Watch) -> list[str] | None:
        """Submit what is not in the queue, and wait; return what went wrong, None unawaited."""
        options = self.slurm or SlurmOptions()
        jobs = submit(shares, root=self.root, device=self.device, options=options)
        new = len(jobs.jobs) - jobs.found
        lines = [f"submitted {new} populations"] if new else []
        lines += [f"{jobs.found} are in the queue already"] if jobs.found else []
        watch.say(f"{', '.join(lines)}: Slurm job {jobs.job_ids}; log: {jobs.log}")
        if not self.wait:
            watch.say("collect with the same command once they are done")
            return None
        return wait_for(jobs, show=watch.queue, say=watch.say)

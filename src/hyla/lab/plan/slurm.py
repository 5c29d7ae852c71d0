"""Populations as a Slurm job array."""

import dataclasses
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from hyla._errors import LauncherError
from hyla._files import write_json
from hyla._optional import needed
from hyla.lab.plan.shares import Share
from hyla.lab.plan.workers import complete
from hyla.training import Interrupted
from hyla.training.run.errors import RunDirectoryError
from hyla.training.run.reading import read_json

if TYPE_CHECKING:
    import submitit

# A population is continued as often as its time limit cuts it short.
_MOST_TIMEOUTS = 1000
# A SIGTERM may herald submitit's own signal, which says that the job has to requeue itself.
_SECONDS_FOR_SECOND_SIGNAL = 3.0
_SECONDS_BETWEEN_LOOKS = 2.0
# Slurm forgets a job a while after its end, and may fail to answer: do not believe a single look.
_LOOKS_UNTIL_LOST = 5
_COMMANDS = ("sbatch", "srun", "squeue")
_RECORD = "populations.json"
"""Run directories, and the jobs that were last submitted for them."""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What each job of the array asks for; what is left out is up to the cluster."""

    partition: str | None = None
    """Partition to submit to."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Required features of the node."""
    time: int = 240
    """Minutes until a job is stopped, requeued and continued."""
    gpus_per_node: int | None = None
    """GPUs per population; one population uses one GPU."""
    cpus_per_task: int | None = None
    """CPU cores per population."""
    mem_gb: float | None = None
    """Memory per population."""
    array_parallelism: int = 256
    """Most populations at a time."""


class PopulationJob:
    """Trains a population inside a Slurm job, and survives its pre-emption.

    submitit announces a pre-emption or a time limit by SIGUSR2, whose handler saves, requeues the
    job and exits at once, wherever the program is. While `train` runs, its own handler takes
    the signal instead and the run stops between two steps, with a checkpoint; then the signal is
    passed on to submitit.
    """

    def __call__(self, share: Share, device: str) -> None:
        """Bring the share to its end from wherever it is."""
        try:
            complete(share, device=device)
        except Interrupted as stop:
            print(stop, flush=True)
            if stop.reason == "SIGUSR2":
                signal.raise_signal(signal.SIGUSR2)  # submitit's handler requeues, and exits
            time.sleep(_SECONDS_FOR_SECOND_SIGNAL)
            # Cancelled, or about to be requeued by Slurm itself. An exception would be recorded
            # as the job's result; an exit is not.
            sys.exit(1)

    def checkpoint(self, share: Share, device: str) -> "submitit.helpers.DelayedSubmission":
        """Tell submitit what to run after a requeue: the same, for the run directory knows."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, share, device)


class SlurmJobs:
    """Populations in Slurm's queue: submitted now, or found there."""

    def __init__(
        self,
        shares: Sequence[Share],
        jobs: Sequence["submitit.Job[None]"],
        log: Path,
        *,
        found: int = 0,
    ):
        self.shares = tuple(shares)
        self.jobs = tuple(jobs)
        self.log = log
        """Folder of the jobs' output."""
        self.found = found
        """How many were in the queue already."""

    @property
    def job_ids(self) -> str:
        """The arrays' numbers, as scancel takes them."""
        return " ".join(dict.fromkeys(job.job_id.split("_")[0] for job in self.jobs))

    def watch(self) -> Iterator[list[str]]:
        """Yield the state of every job again and again, until all have ended."""
        missing = [0] * len(self.jobs)
        while True:
            try:
                queue = _queue()
            except _NoAnswerError:
                queue = None
            states = []
            for i, job in enumerate(self.jobs):
                if job.paths.result_pickle.exists():
                    states.append("failed" if self.failure(i) else "finished")
                    continue
                state = None
                if queue is not None:
                    state = queue.get(job.job_id)
                    missing[i] = 0 if state else missing[i] + 1
                states.append(state or ("lost" if missing[i] >= _LOOKS_UNTIL_LOST else "unknown"))
            yield states
            if all(state in ("finished", "failed", "lost") for state in states):
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def failure(self, index: int) -> str | None:
        """Return the last line of an ended job's exception; None if it went well."""
        job = self.jobs[index]
        if not job.paths.result_pickle.exists():
            return "ended without a result: cancelled, killed, or out of memory"
        error = job.exception()
        if error is None:
            return None
        trace = str(error).split("-" * 22)[1].strip()
        return trace.splitlines()[-1]


class _NoAnswerError(Exception):
    """Slurm does not say what is in the queue."""


def _queue() -> dict[str, str]:
    """Return the states of the user's jobs that wait or run (sacct would need accounting)."""
    answer = subprocess.run(
        ["squeue", "--noheader", "--array", "--format=%i %T", "--me"],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        said = answer.stderr.strip().splitlines()
        raise _NoAnswerError(f" ({said[-1]})" if said else "")
    lines = (line.split() for line in answer.stdout.splitlines())
    return {job: state.lower() for job, state in lines}


def submit(
    shares: Sequence[Share], *, root: Path, device: str = "auto", options: SlurmOptions
) -> SlurmJobs:
    """Submit one job per population, as an array; one that is in the queue is not submitted again.

    Whose job is whose is written to a file beside the jobs' output.
    """
    with needed("slurm", raises=LauncherError):
        import submitit
        from submitit.core.utils import FailedJobError
    if missing := [name for name in _COMMANDS if shutil.which(name) is None]:
        raise LauncherError(
            f"Slurm's commands are not found here ({', '.join(missing)}): run this where jobs are "
            "submitted, or use --launcher local"
        )
    log = root.absolute() / "slurm"
    executor = submitit.SlurmExecutor(log, max_num_timeout=_MOST_TIMEOUTS)
    parameters = {name: value for name, value in asdict(options).items() if value is not None}
    executor.update_parameters(
        job_name="hyla", additional_parameters={"requeue": True}, **parameters
    )
    record = log / _RECORD
    submitted = _submitted(record)
    try:
        queue = _queue()
    except _NoAnswerError as error:
        raise LauncherError(
            f"squeue does not say what is in the queue{error}; nothing was submitted, lest it be "
            "twice: run this again where `squeue --me` works, or use --launcher local"
        ) from error
    waiting = [share for share in shares if submitted.get(share.path.name) in queue]
    new = [share for share in shares if submitted.get(share.path.name) not in queue]
    jobs: Sequence[submitit.Job[None]] = []
    try:
        if new:
            jobs = executor.map_array(
                PopulationJob(),
                [dataclasses.replace(share, path=share.path.absolute()) for share in new],
                repeat(device),
            )
    except FailedJobError as error:
        raise LauncherError(
            f"Slurm refused the jobs: {str(error).strip().splitlines()[-1]}"
        ) from error
    names = {share.path.name: job.job_id for share, job in zip(new, jobs, strict=True)}
    write_json(record, submitted | names)
    found = [submitit.SlurmJob[None](log, submitted[share.path.name]) for share in waiting]
    return SlurmJobs([*waiting, *new], [*found, *jobs], log, found=len(found))


def wait_for(
    jobs: SlurmJobs, *, show: Callable[[SlurmJobs, Sequence[str]], None], say: Callable[[str], None]
) -> list[str]:
    """Wait for the jobs, showing the state of each again and again; return what went wrong."""
    states: list[str] = []
    try:
        for states in jobs.watch():
            show(jobs, states)
    except KeyboardInterrupt:
        say(f"The jobs go on: the same command collects them, `scancel {jobs.job_ids}` stops them.")
        raise
    return [
        f"{share.path.name}: {jobs.failure(i)} (see {jobs.jobs[i].paths.stderr})"
        for i, share in enumerate(jobs.shares)
        if states[i] != "finished"
    ]


def _submitted(record: Path) -> dict[str, str]:
    """Return the jobs that were last submitted, by their run directories."""
    advice = (
        "it says which populations are in the queue; once `squeue --me` shows none of them, "
        "delete it and run this again"
    )
    jobs = read_json(record, missing={}, advice=advice)
    if not isinstance(jobs, dict) or not all(isinstance(job, str) for job in jobs.values()):
        raise RunDirectoryError(f"{record} is damaged: {advice}.")
    return jobs

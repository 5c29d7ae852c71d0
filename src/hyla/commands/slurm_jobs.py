"""Submitting populations to Slurm and waiting for them in the terminal."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from hyla.commands.exits import usage_errors
from hyla.commands.options import check_max_seconds
from hyla.commands.output import table
from hyla.lab.plan.launch import SlurmJobs, SlurmOptions, submit
from hyla.lab.plan.sweep import Share
from hyla.training.run.checkpoints.base import newest_step


def check_launcher(
    launcher: str,
    *,
    max_seconds: float | None,
    wait: bool,
    options: SlurmOptions | None,
    workers: int = 1,
) -> None:
    """Raise a ValueError for an option of the other launcher, which this one would ignore."""
    if launcher == "slurm":
        if max_seconds is not None:
            raise ValueError("--max-seconds is for --launcher local; here, use --slurm.time")
        if workers != 1:
            raise ValueError("--workers is for --launcher local; on Slurm, populations are jobs")
        return
    for name, given in (("--slurm.*", options is not None), ("--no-wait", not wait)):
        if given:
            raise ValueError(f"{name} is for --launcher slurm, and here nothing is submitted")
    check_max_seconds(max_seconds)


def train_on_slurm(
    shares: Sequence[Share],
    *,
    root: Path,
    device: str,
    options: SlurmOptions | None,
    wait: bool,
    out: Console,
) -> list[str] | None:
    """Submit what is not in the queue, and wait; return what went wrong, None without a wait."""
    with usage_errors():
        jobs = submit(shares, root=root, device=device, options=options or SlurmOptions())
    new = len(jobs.jobs) - jobs.found
    lines = [f"submitted {new} populations"] if new else []
    lines += [f"{jobs.found} are in the queue already"] if jobs.found else []
    _say(out, f"{', '.join(lines)}: Slurm job {jobs.job_ids}; log: {jobs.log}")
    if not wait:
        _say(out, "collect with the same command once they are done")
        return None
    return _wait_for(jobs, out)


def _say(out: Console, line: str) -> None:
    out.print(line, markup=False, highlight=False, soft_wrap=True)


def _wait_for(jobs: SlurmJobs, out: Console) -> list[str]:
    """Show the jobs' state until their end; return what went wrong."""
    states: list[str] = []
    try:
        if out.is_terminal:
            with Live(console=out, auto_refresh=False) as live:
                for states in jobs.watch():
                    live.update(_jobs(jobs, states), refresh=True)
        else:
            shown = ""
            for states in jobs.watch():
                counts = ", ".join(f"{n} {state}" for state, n in sorted(Counter(states).items()))
                if counts != shown:
                    _say(out, f"Slurm job {jobs.job_ids}: {counts}")
                shown = counts
    except KeyboardInterrupt:
        _say(
            out,
            f"The jobs go on: the same command collects them, `scancel {jobs.job_ids}` stops them.",
        )
        raise
    return [
        f"{share.path.name}: {jobs.failure(i)} (see {jobs.jobs[i].paths.stderr})"
        for i, share in enumerate(jobs.shares)
        if states[i] != "finished"
    ]


def _jobs(jobs: SlurmJobs, states: Sequence[str]) -> Table:
    shown = table(
        f"Slurm job {jobs.job_ids}", "method", "state", "saved step", numeric=("saved step",)
    )
    for share, state in zip(jobs.shares, states, strict=True):
        step = newest_step(share.path) or 0
        shown.add_row(str(share.method), state, f"{step:,} of {share.config.steps:,}")
    return shown

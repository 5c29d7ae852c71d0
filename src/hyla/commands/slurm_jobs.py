"""Waiting for Slurm jobs in the terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from hyla.commands.output import table
from hyla.lab.launch import SlurmArray
from hyla.training.checkpoint import newest_step


def wait_for(array: SlurmArray, out: Console) -> list[str]:
    """Show the array's state until its end; return what went wrong."""
    states: list[str] = []
    try:
        if out.is_terminal:
            with Live(console=out, auto_refresh=False) as live:
                for states in array.watch():
                    live.update(_jobs(array, states), refresh=True)
        else:
            shown = ""
            for states in array.watch():
                counts = ", ".join(f"{n} {state}" for state, n in sorted(Counter(states).items()))
                if counts != shown:
                    out.print(f"Slurm job {array.job_id}: {counts}", highlight=False)
                shown = counts
    except KeyboardInterrupt:
        out.print(
            f"The jobs go on: the same command collects them, `scancel {array.job_id}` stops them.",
            highlight=False,
        )
        raise
    return [
        f"{share.path.name}: {array.failure(i)} (see {array.jobs[i].paths.stderr})"
        for i, share in enumerate(array.shares)
        if states[i] != "finished"
    ]


def _jobs(array: SlurmArray, states: Sequence[str]) -> Table:
    shown = table(
        f"Slurm job {array.job_id}", "method", "state", "saved step", numeric=("saved step",)
    )
    for share, state in zip(array.shares, states, strict=True):
        step = newest_step(share.path) or 0
        shown.add_row(str(share.method), state, f"{step:,} of {share.config.steps:,}")
    return shown

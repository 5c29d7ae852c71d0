"""What whoever waits for a sweep or a figure sees: lines, and the jobs in Slurm's queue."""

from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.live import Live
from rich.table import Table

from hyla.commands.shared.output import Screen, table
from hyla.lab.plan.pipeline import Watch
from hyla.lab.plan.slurm import SlurmJobs
from hyla.training.run.checkpoints.base import newest_step


class LabScreen(Watch):
    """The terminal; while entered, the queue is a table in it that changes. Elsewhere, lines."""

    def __init__(self):
        self.console = Screen()
        super().__init__(self.console.say)
        self._live = Live(console=self.console, auto_refresh=False)
        self._counts = ""

    def show(self, shown: Table) -> None:
        """Print a table."""
        self.console.print(shown)

    def queue(self, jobs: SlurmJobs, states: Sequence[str]) -> None:
        """Show the state of every job, or how many are in each."""
        if self.console.is_terminal:
            self._live.start()
            self._live.update(_jobs(jobs, states), refresh=True)
            return
        counts = ", ".join(f"{n} {state}" for state, n in sorted(Counter(states).items()))
        if counts != self._counts:
            self.say(f"Slurm job {jobs.job_ids}: {counts}")
        self._counts = counts

    def __enter__(self) -> "LabScreen":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()


def _jobs(jobs: SlurmJobs, states: Sequence[str]) -> Table:
    shown = table(
        f"Slurm job {jobs.job_ids}", "method", "state", "saved step", numeric=("saved step",)
    )
    for share, state in zip(jobs.shares, states, strict=True):
        step = newest_step(share.path) or 0
        shown.add_row(str(share.method), state, f"{step:,} of {share.config.steps:,}")
    return shown

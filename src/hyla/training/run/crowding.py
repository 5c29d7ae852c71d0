"""Other processes on the cores that this one trains on, and how many threads are left for it.

The threads of a small product wait for one another by spinning. While one of them has no core the
others burn theirs: beside one busy process two threads were seen at a thirtieth of their speed, a
single one at half.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

_STATISTICS = Path("/proc/stat")  # of Linux; elsewhere threads stay as they are
_SECONDS = 10.0
_SPARE = 0.3  # of a core: what an idle machine does anyway


class Crowding:
    """Looks every few seconds how much the rest of the machine computes, and makes room for it.

    While entered, the process takes no more threads than there are free cores, and as many as it
    began with once they are free again: each time that it comes back for longer, so that a
    neighbour who comes and goes does not have it change all the time.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` is told in a line of each change."""
        self._say = say
        self._wanted = torch.get_num_threads()
        self._silent = not _STATISTICS.exists() or self._wanted == 1
        self._began = self._now()
        self._calm, self._patience = 0, 1  # looks since the cores were free; those to wait for

    def __enter__(self) -> "Crowding":
        return self

    def __exit__(self, *error: object) -> None:
        if torch.get_num_threads() != self._wanted:
            torch.set_num_threads(self._wanted)

    def look(self) -> None:
        """Change the number of threads if it is time to look, and there is reason to."""
        if self._silent:
            return
        began, now = self._began, self._now()
        seconds, busy, own = (b - a for a, b in zip(began, now, strict=True))
        if seconds < _SECONDS:
            return
        self._began = now
        cores, others = os.cpu_count() or 1, (busy - own) / seconds
        threads = torch.get_num_threads()
        free = min(self._wanted, max(1, int(cores + _SPARE - others)))
        self._calm = 0 if free <= threads else self._calm + 1
        if free < threads:
            self._patience *= 2
            self._change(free, f"other processes keep {others:.1f} of {cores} cores busy")
        elif self._calm >= self._patience:
            self._change(free, f"{cores - others:.1f} of {cores} cores are free again")

    def _change(self, threads: int, why: str) -> None:
        torch.set_num_threads(threads)
        self._calm = 0
        self._say(f"{why}: training with {threads} of {self._wanted} threads")

    def _now(self) -> tuple[float, float, float]:
        """Return the time, and the seconds that all processes and this one have computed."""
        if self._silent:
            return 0.0, 0.0, 0.0
        return time.monotonic(), _busy_seconds(), time.process_time()


def _busy_seconds() -> float:
    """Return the seconds that all cores together have computed since the machine started."""
    # user, nice, system, idle, waiting for disks, two kinds of interrupts; then guests, again
    ticks = [int(number) for number in _STATISTICS.read_text().split(maxsplit=8)[1:8]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")

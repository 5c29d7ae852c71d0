"""Other processes on the cores that this one trains on, and what to do about them.

The threads of a small product wait for one another by spinning. While one of them has no core the
others burn theirs: beside one busy process two threads were seen at a thirtieth of their speed, a
single one at half.
"""

import os
import time
from pathlib import Path

import torch

_STATISTICS = Path("/proc/stat")  # of Linux; elsewhere nothing is said
_SECONDS = 10.0
_SPARE = 0.3  # of a core: what an idle machine does anyway


class Crowding:
    """Looks every few seconds how much the rest of the machine computes; speaks once."""

    def __init__(self) -> None:
        self._silent = not _STATISTICS.exists()
        self._began = self._now()

    def advice(self) -> str | None:
        """Return what to say, if there are more busy threads than cores; else None."""
        threads = torch.get_num_threads()
        if self._silent or threads == 1:
            return None
        began, now = self._began, self._now()
        seconds, busy, own = (b - a for a, b in zip(began, now, strict=True))
        if seconds < _SECONDS:
            return None
        self._began = now
        cores, others = os.cpu_count() or 1, (busy - own) / seconds
        if others + threads <= cores + _SPARE:
            return None
        self._silent = True
        return (
            f"other processes keep {others:.1f} of {cores} cores busy, and {threads} threads "
            "wait for one another: OMP_NUM_THREADS=1 may be many times faster"
        )

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

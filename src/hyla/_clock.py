"""How often something can be done in a second."""

import statistics
import time
from collections.abc import Callable

import torch

SLICES = 20


def calls_per_second(run: Callable[[int], object], device: torch.device, seconds: float) -> float:
    """Return the median rate of slices that together last about `seconds`; run(n) makes n calls."""
    rates, calls, deadline = [], 1, time.monotonic() + seconds
    while time.monotonic() < deadline or len(rates) < 3:
        began = time.monotonic()
        run(calls)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elapsed = time.monotonic() - began
        if elapsed < seconds / SLICES:
            calls *= 2  # too short to time
        else:
            rates.append(calls / elapsed)
    return statistics.median(rates)

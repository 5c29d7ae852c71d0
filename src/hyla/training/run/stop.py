"""Asking a training loop to stop: by signal, or after a time.

The loop looks at `StopRequest.requested` between steps and between the batches of an evaluation;
the run then saves a checkpoint and leaves.
"""

import math
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType

# SIGTERM: a scheduler or `kill`. SIGINT: Ctrl-C. SIGUSR1: Slurm's --signal ahead of a time limit.
# SIGUSR2: the same where submitit submits the job. Windows lacks the last two.
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


class Stopped(Exception):  # noqa: N818 - it is not an error
    """Work was left unfinished because a stop was requested."""


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """The run was asked to stop, has saved a checkpoint, and can be continued."""

    def __init__(self, message: str, reason: str | None, failures: Sequence[str] = ()):
        super().__init__(message)
        self.reason = reason
        """As `StopRequest.reason`: which signal, or "time limit"."""
        self.failures = failures
        """A line for each of several runs that had failed before."""


class StopRequest:
    """Notes the first reason to stop; while entered, signals are such reasons.

    A second Ctrl-C raises KeyboardInterrupt at once. Python lets only the main thread handle
    signals: entered in another one, this offers the time limit and `request` alone.
    """

    def __init__(self, *, max_seconds: float = math.inf) -> None:
        """Start the clock: after `max_seconds` a stop counts as requested."""
        self._deadline = time.monotonic() + max_seconds
        self._reason: str | None = None
        self._previous_handlers: dict[signal.Signals, signal._HANDLER] = {}
        self._interrupted = False

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        while self._previous_handlers:
            number, handler = self._previous_handlers.popitem()
            # None stands for a handler that was not installed from Python, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @property
    def requested(self) -> bool:
        """Whether to stop as soon as possible."""
        return self.reason is not None

    @property
    def reason(self) -> str | None:
        """The first reason to stop, a signal's name or "time limit"; None to go on.

        SIGUSR2 replaces any other: it is the one whose receiver has to requeue itself, and it may
        follow a SIGTERM closely.
        """
        if self._reason is None and time.monotonic() >= self._deadline:
            self._reason = "time limit"
        return self._reason

    def check(self) -> None:
        """Raise `Stopped` if a stop is requested."""
        if self.requested:
            raise Stopped

    def request(self, reason: str) -> None:
        """Ask for a stop from the program itself."""
        if self._reason is None:
            self._reason = reason

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        name = signal.Signals(number).name
        if name == "SIGUSR2":
            self._reason = name
        self.request(name)

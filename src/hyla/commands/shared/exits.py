"""Which errors are answered with a message instead of a traceback, and the exit codes they get."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyla._errors import BusyError, ExportError, LauncherError, UnfinishedError
from hyla._optional import MissingLibraryError
from hyla._plugins import PluginError
from hyla.results.origins import MissingOriginError
from hyla.training import Interrupted
from hyla.training.devices import ModelTooLargeError
from hyla.training.run.errors import (
    DISK_FULL,
    CheckpointError,
    NoMemberError,
    NoRunError,
    RunDirectoryError,
    describe_failure,
)

FAILURE = 1
USAGE = 2
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: not finished, and the same command continues
CTRL_C = 130


class UsageError(Exception):
    """What was asked for makes no sense; the message says what would."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Take a ValueError for the user's error: enter it around reading and checking input alone."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Answer an error of the operating system with a message: no such place, no right to it."""
    try:
        with full_disk(path):
            yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Say where a disk was full, which not every library says: somewhere in `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise RunDirectoryError(describe_failure(path, error)) from error


@contextmanager
def continued_after_ctrl_c() -> Iterator[None]:
    """Answer a Ctrl-C that nothing else answers: the second, or one beside training.

    For commands whose work is on disk as it is done.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped at once; what was saved until then stays, and the same command continues",
            "SIGINT",
        ) from None


def explanation(error: Exception) -> tuple[str, int] | None:
    """Return message and exit code of an error that is no bug, wherever the disk was full."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        path = Path(error.filename) if error.filename else None
        return describe_failure(path, error), FAILURE
    code = exit_code(error)
    return None if code is None else (str(error), code)


def exit_code(error: Exception) -> int | None:
    """Return the exit code of an error that its message explains; None for a bug."""
    match error:
        case Interrupted():
            return CTRL_C if error.reason == "SIGINT" else TRY_AGAIN
        case (
            UsageError()
            | NoRunError()
            | NoMemberError()
            | LauncherError()
            | PluginError()
            | MissingLibraryError()
        ):
            return USAGE
        case BusyError():
            return TRY_AGAIN
        case (
            RunDirectoryError()
            | CheckpointError()
            | ModelTooLargeError()
            | UnfinishedError()
            | MissingOriginError()
            | ExportError()
        ):
            return FAILURE
    return None

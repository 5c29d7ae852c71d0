"""What can go wrong with the files of a run, and what to do about it."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


class RunDirectoryError(RuntimeError):
    """The directory of a run cannot be used as it is."""


class NoRunError(RunDirectoryError):
    """There is no run where one was asked for."""


class RunBusyError(RunDirectoryError):
    """Another process is training this run."""


class ApartError(RuntimeError):
    """Runs that were to train together cannot."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or used; those already there are untouched."""


class NoMemberError(CheckpointError):
    """A run has fewer models than that."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError of using `path` into a RunDirectoryError that says what to do about it."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(describe_failure(path, error)) from error


def describe_failure(path: Path | None, error: OSError) -> str:
    """Say what could not be done with `path`, and what to do about it.

    None is a place that nobody knows, of a full disk alone.
    """
    # Of os.path: pathlib's own raises where it may not look.
    places = () if path is None else (path, *path.absolute().parents)
    existing = next((place for place in places if os.path.exists(place)), None)
    if error.errno in DISK_FULL:
        where = "a file" if existing is None else f"{path}, {_room_left(existing, error)}"
        return (
            f"Disk full: cannot write {where}. Make room, for instance by deleting run "
            "directories that are not needed any more, and run the same command again to continue."
        )
    if isinstance(error, NotADirectoryError | FileExistsError):
        return f"Cannot make {path}: {existing} is not a directory. Keep the runs somewhere else."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return (
            f"Cannot use {path}: {error.strerror}. Keep the runs where you may write, or ask the "
            "directory's owner."
        )
    return f"Cannot use {path}: {error}. What was saved before is intact."


def unsaved(path: Path, size: int, error: OSError, *, earlier: bool) -> CheckpointError:
    """Return the error of a checkpoint of `size` bytes that could not be written.

    `earlier` says whether there are others.
    """
    if error.errno in DISK_FULL:
        what = (
            f"Disk full: the checkpoint {path.name} needs {size / 1e6:.1f} MB in {path.parent}, "
            f"{_room_left(path.parent, error)}"
        )
    else:
        what = f"Cannot write the checkpoint {path}: {error}"
    rest = (
        "Earlier checkpoints are intact: mend that and run the same command again to continue."
        if earlier
        else "There is no earlier checkpoint: mend that, and the same command starts again."
    )
    return CheckpointError(f"{what}. {rest}")


def _room_left(directory: Path, error: OSError) -> str:
    """Say how much room there is where the disk was full."""
    if error.errno == errno.EDQUOT:
        return "your disk quota is used up"
    return f"{shutil.disk_usage(directory).free / 1e6:.1f} MB are free"

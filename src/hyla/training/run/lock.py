"""The lock of a run directory: held by the process that trains, and says which one that is."""

import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from hyla.training.run.errors import RunBusyError, RunDirectoryError, explained


def take_lock(path: Path) -> IO[bytes]:
    """Lock `path` until the returned file is closed, which the kernel does for a killed process."""
    with explained(path):
        # Unbuffered: what a full disk refuses must not be tried again on closing.
        file = path.open("a+b", buffering=0)
    try:
        _lock_or_raise(file, path)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        with explained(path):
            file.truncate(0)
            file.write((json.dumps(holder) + "\n").encode())
    except BaseException:
        file.close()
        raise
    return file


def now() -> str:
    """Return the time, as the files of a run state it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _lock_or_raise(file: IO[bytes], path: Path) -> None:
    try:
        locked = _try_lock(file)
    except OSError as error:
        raise RunDirectoryError(
            f"Cannot lock {path}: {error}. Keep the runs on a file system that supports locks."
        ) from error
    if not locked:
        with explained(path):
            file.seek(0)
            raise RunBusyError(_describe_holder(path.parent, file.read()))


if os.name == "nt":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        # Windows locks bytes and then refuses to read them: lock one far beyond the holder's name.
        file.seek(1 << 30)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _describe_holder(run: Path, text: bytes) -> str:
    try:
        holder = json.loads(text)
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (ValueError, KeyError, TypeError):  # it has the lock, and has not yet written its name
        who = "a process that has just started"
    return f"{run} is being trained by {who}. Wait for it, or stop it; the run can be resumed."

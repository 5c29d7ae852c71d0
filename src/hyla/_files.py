"""Files that are there whole or not at all."""

import errno
import hashlib
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a reader, or a crash, sees the old file or the new one."""
    # A name of its own: threads share a process, and hosts may share a disk.
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(8)}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):  # writing and syncing do not say what could not be written
            error.filename = str(path)
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, content: Any, *, ensure_ascii: bool = True) -> None:
    """Put readable JSON at `path`, whole or not at all."""
    text = json.dumps(content, indent=1, ensure_ascii=ensure_ascii)
    write_atomically(path, f"{text}\n".encode())


def sync_directory(directory: Path) -> None:
    """Make a rename durable; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path, *, at_most: int | None = None) -> BinaryIO:
    """Open a file for reading; an OSError if it holds more than `at_most` bytes.

    And if it is a pipe or a device: whoever reads those may wait for ever.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if at_most is not None and status.st_size > at_most:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes are more than {at_most:,}")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, *, at_most: int | None = None) -> bytes:
    """Return what a file holds that `open_regular` opens."""
    with open_regular(path, at_most=at_most) as file:
        return file.read()


def sha256_of(path: Path) -> str:
    """Return the hash of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

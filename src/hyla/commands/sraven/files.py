"""Files that a user names and that cannot be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyla.commands.exits import UsageError


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Answer an error of the operating system with a message: no such place, no right to it."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error

"""A run is a directory, named by the hash of its config and held by one process at a time.

``RUNS/<name>-<first 12 hex digits of the config's fingerprint>/`` holds

- ``config.json``: the resolved config; its fingerprint is the identity of the run;
- ``provenance.json``: one entry per start: versions, device, git commit, time;
- ``metrics.jsonl``: one JSON object per line, each with its ``step``; that of step 0 says how large
  the branches of the models are (`read_branch_scales`), all others are metrics;
- ``checkpoint-*.safetensors``: see `hyla.training.checkpoint`;
- ``lock``: held by the process that trains, and says which one that is;
- ``finished.json``: the final summary; it exists once the run is complete.

JSON has no NaN or infinity. In ``metrics.jsonl`` and ``finished.json`` such a number is written
as ``null``, and the record's ``"nonfinite"`` entry says what it was and where, as a JSON pointer:
``{"step": 7, "loss": [0.5, null], "nonfinite": {"/loss/1": "nan"}}``. Any JSON reader can read
that; `RunDirectory.metrics` puts the numbers back.
"""

import errno
import json
import math
import os
import platform
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch

from hyla import __version__
from hyla._environment import environment, git_commit
from hyla._files import open_regular, read_regular, write_atomically
from hyla.training.checkpoint import DISK_FULL, JSON, room_left
from hyla.training.identity import fingerprint

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NONFINITE = "nonfinite"
_BRANCH_SCALES = "branch_scales"
_LARGEST_JSON = 16 << 20  # a summary of 1,000 models is a fiftieth of that
_RESTORE = "Restore it from a copy, or delete it to go on without what it held"


class RunDirectoryError(RuntimeError):
    """The directory of a run cannot be used as it is."""


class RunBusyError(RunDirectoryError):
    """Another process is training this run."""


def directory_of(root: Path, name: str, config: Mapping[str, JSON]) -> Path:
    """Return where the run with this config lives, whether or not it exists."""
    return Path(root) / f"{name}-{fingerprint(config)[:12]}"


class RunDirectory:
    """The directory of one run, locked for this process until `close` (or the process's end)."""

    def __init__(self, path: Path, fingerprint: str, lock: IO[bytes]) -> None:
        """Prefer `RunDirectory.open`, which takes the lock and checks the config."""
        self.path = path
        self.fingerprint = fingerprint
        self.finished: dict[str, Any] | None = read_finished(path)
        self._lock = lock
        self._metrics_path = path / "metrics.jsonl"
        self._metrics = self._open_metrics()

    @classmethod
    def open(
        cls, root: Path, name: str, config: dict[str, Any], *, device: torch.device | None = None
    ) -> "RunDirectory":
        """Create, or reopen, the directory of the run with this config, and lock it.

        `device` is where this start trains, for the record; the GPU, if there is one, by default.

        Raises:
            RunBusyError: another process holds the run.
            RunDirectoryError: the directory cannot be made, written or locked, or holds another
                config or damaged files.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"A run's name becomes a directory: {name!r} must consist of letters, digits, "
                "'.', '_' and '-', and start with a letter or digit."
            )
        identity = fingerprint(config)
        path = directory_of(root, name, config)
        with _explained(path):
            path.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(path / "lock")
        try:
            _write_or_check_config(path / "config.json", config, identity)
            if read_finished(path) is None:
                add_provenance(path, device)
            return cls(path, identity, lock)
        except BaseException:
            lock.close()
            raise

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the run for other processes."""
        self._metrics.close()
        if not self._lock.closed:
            with suppress(OSError):  # the name in it is a courtesy
                self._lock.truncate(0)  # the file itself stays, as others may wait on it
            self._lock.close()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append `record`, which has an integer ``step``, to ``metrics.jsonl``."""
        step = record.get("step")
        if not isinstance(step, int):
            raise ValueError(f"A metrics record needs an integer 'step', to rewind by; got {step}")
        line = (_dumps(record) + "\n").encode()
        with _explained(self._metrics_path):
            size_before = os.fstat(self._metrics.fileno()).st_size
            if self._metrics.write(line) != len(line):
                self._metrics.truncate(size_before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def log_branch_scales(self, record: Mapping[str, Any]) -> None:
        """Append what `read_branch_scales` returns; no reader of metrics sees it."""
        self.log({"step": 0, _BRANCH_SCALES: record})

    def sync(self) -> None:
        """Force the metrics to disk.

        Before saving a checkpoint, so that even a power cut leaves no checkpoint whose metrics
        are missing; a kill alone never does.
        """
        with _explained(self._metrics_path):
            os.fsync(self._metrics.fileno())

    def rewind(
        self, step: int, *, last: int = 0, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        """Forget what was logged after `step`, the step of the checkpoint resumed from.

        A torn last line goes too. What the resumed run then logs makes the file the same as an
        uninterrupted run's, provided that a step's records are logged before its checkpoint is
        saved. Without a checkpoint, rewind to step -1: everything goes.

        `last` is the step of the last record that was on disk before that checkpoint (0 if there
        was none): a file without it was damaged. One that is empty, or was deleted, is only
        reported through `warn`, as that is how to go on without it.
        """
        with _explained(self._metrics_path):
            content = read_regular(self._metrics_path)
        lines = content.splitlines(keepends=True)
        records = [] if step < 0 else list(_records(self._metrics_path, lines))
        records = [(line, record) for line, record in records if record["step"] <= step]
        if last > 0 and not any(record["step"] == last for _, record in records):
            lost = f"what was logged up to step {last} is not in {self._metrics_path}"
            if content:
                raise RunDirectoryError(f"{lost}: it was damaged. {_RESTORE}.")
            warn(f"{lost}, which is empty; the run goes on without")
        kept = b"".join(line for line, _ in records)
        if kept == content:
            return
        self._metrics.close()
        try:
            with _explained(self._metrics_path):
                write_atomically(self._metrics_path, kept)
        finally:
            self._metrics = self._open_metrics()

    def metrics(self) -> list[dict[str, Any]]:
        """Return every complete record logged so far, NaN and infinities restored."""
        return read_metrics(self.path)

    def keep(self, name: str, content: bytes) -> None:
        """Put a file of the caller's beside the others."""
        with _explained(self.path / name):
            write_atomically(self.path / name, content)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as complete."""
        self.keep("finished.json", (_dumps(summary) + "\n").encode())
        self.finished = read_finished(self.path)

    def _open_metrics(self) -> IO[bytes]:
        # Unbuffered: a line is with the operating system, and survives a kill, once written.
        with _explained(self._metrics_path):
            return self._metrics_path.open("ab", buffering=0)


# --- failures --------------------------------------------------------------------------------


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an OSError of using `path` into a RunDirectoryError that says what to do about it."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(_describe_failure(path, error)) from error


def _describe_failure(path: Path, error: OSError) -> str:
    # Of os.path: pathlib's own raises where it may not look.
    existing = next(place for place in (path, *path.absolute().parents) if os.path.exists(place))
    if error.errno in DISK_FULL:
        return (
            f"Disk full: cannot write {path}, {room_left(existing, error)}. Make room, for "
            "instance by deleting run directories that are not needed any more, and run the same "
            "command again to continue."
        )
    if isinstance(error, NotADirectoryError | FileExistsError):
        return f"Cannot make {path}: {existing} is not a directory. Keep the runs somewhere else."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return (
            f"Cannot use {path}: {error.strerror}. Keep the runs where you may write, or ask the "
            "directory's owner."
        )
    return f"Cannot use {path}: {error}. What was saved before is intact."


# --- the lock --------------------------------------------------------------------------------


def _take_lock(path: Path) -> IO[bytes]:
    """Lock `path` until the returned file is closed, which the kernel does for a killed process."""
    with _explained(path):
        # Unbuffered: what a full disk refuses must not be tried again on closing.
        file = path.open("a+b", buffering=0)
    try:
        _lock_or_raise(file, path)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        with _explained(path):
            file.truncate(0)
            file.write((json.dumps(holder) + "\n").encode())
    except BaseException:
        file.close()
        raise
    return file


def _lock_or_raise(file: IO[bytes], path: Path) -> None:
    try:
        locked = _try_lock(file)
    except OSError as error:
        raise RunDirectoryError(
            f"Cannot lock {path}: {error}. Keep the runs on a file system that supports locks."
        ) from error
    if not locked:
        with _explained(path):
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


# --- config and provenance ---------------------------------------------------------------------


def _write_or_check_config(path: Path, config: dict[str, Any], identity: str) -> None:
    if not path.exists():
        text = json.dumps(config, indent=2, sort_keys=True, allow_nan=False)
        with _explained(path):
            write_atomically(path, (text + "\n").encode())
        return
    try:
        with _explained(path):
            same = fingerprint(json.loads(read_regular(path))) == identity
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise RunDirectoryError(
            f"{path} is not the config of this run ({identity[:12]}): it was edited, or another "
            "config has the same short hash. Move the directory away, or use another name."
        )


def add_provenance(run: Path, device: torch.device | None) -> None:
    """Record this start; a run resumed elsewhere has several, and its figures come from all."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    start = {
        "started": _now(),
        "hyla": __version__,
        "git_commit": git_commit(),
        **environment(device),
        "platform": platform.platform(),
    }
    starts = [*read_provenance(run), start]
    path = run / "provenance.json"
    with _explained(path):
        write_atomically(path, (json.dumps(starts, indent=2) + "\n").encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- records -----------------------------------------------------------------------------------


def _records(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield (line, record) of JSON lines, up to a torn end.

    A kill tears the last line only, a power cut perhaps several; a broken line with good ones
    after it was made by neither, and is for a person to look at. So is a file without any record,
    unless it is the torn beginning of a first one.
    """
    broken, number, line = 0, 0, b""
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or "step" not in record:
            broken = broken or number
        elif broken:
            raise RunDirectoryError(
                f"{path}, line {broken}, is not a metrics record: repair or remove that line."
            )
        else:
            yield line, record
    if broken == 1 and not (number == 1 and _is_torn_record(line)):
        raise RunDirectoryError(f"{path} is damaged: it holds no metrics record. {_RESTORE}.")


def _is_torn_record(line: bytes) -> bool:
    """Whether it may be what a kill, or with zeros a power cut, leaves of a line."""
    return not line.endswith(b"\n") and line.strip(b"\0")[:1] in (b"", b"{")


def _dumps(record: Mapping[str, Any]) -> str:
    if _NONFINITE in record:
        raise ValueError(f"The key {_NONFINITE!r} is reserved: choose another name.")
    nonfinite: dict[str, str] = {}
    finite = _replace_nonfinite(record, "", nonfinite)
    if nonfinite:
        finite[_NONFINITE] = nonfinite
    return json.dumps(finite, allow_nan=False)


def _replace_nonfinite(value: Any, pointer: str, found: dict[str, str]) -> Any:
    """Copy `value` with null for every NaN or infinity, noting each in `found` by its pointer."""
    if isinstance(value, float) and not math.isfinite(value):
        found[pointer] = str(value)
        return None
    if isinstance(value, Mapping):
        return {
            key: _replace_nonfinite(item, f"{pointer}/{_escape(str(key))}", found)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item, f"{pointer}/{i}", found) for i, item in enumerate(value)]
    return value


def _restore_nonfinite(record: dict[str, Any]) -> dict[str, Any]:
    """Put the numbers back, in place."""
    for pointer, number in record.pop(_NONFINITE, {}).items():
        *parents, last = (_unescape(part) for part in pointer.split("/")[1:])
        holder: Any = record
        for part in parents:
            holder = holder[int(part) if isinstance(holder, list) else part]
        holder[int(last) if isinstance(holder, list) else last] = float(number)
    return record


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the complete metrics of the run directory `path`, without locking it."""
    return list(iterate_metrics(path))


def iterate_metrics(path: Path, *, at_most: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the same one at a time; of a file that is larger than `at_most` bytes, none."""
    return (r for r in _iterate_records(path, at_most) if _BRANCH_SCALES not in r)


def read_branch_scales(path: Path) -> dict[str, Any] | None:
    """Return the scales of the branches at the start of a run; None if it has not logged any."""
    return next((r[_BRANCH_SCALES] for r in _iterate_records(path) if _BRANCH_SCALES in r), None)


def _iterate_records(path: Path, at_most: int | None = None) -> Iterator[dict[str, Any]]:
    file = path / "metrics.jsonl"
    with _explained(file), open_regular(file, at_most=at_most) as lines:
        for _, record in _records(file, lines):
            yield _restore_nonfinite(record)


def newest_metrics(path: Path, most_bytes: int) -> list[dict[str, Any]]:
    """Return the records in the last `most_bytes` of those of the run directory `path`."""
    file = path / "metrics.jsonl"
    with _explained(file), open_regular(file) as lines:
        start = max(0, os.fstat(lines.fileno()).st_size - most_bytes)
        if start:
            lines.seek(start - 1)
            lines.readline(most_bytes + 1)  # what is left of the record in which these bytes begin
        records = (_restore_nonfinite(record) for _, record in _records(file, lines))
        return [record for record in records if _BRANCH_SCALES not in record]


def read_finished(path: Path) -> dict[str, Any] | None:
    """Return the final summary of the run directory `path`; None if it is not complete."""
    file = path / "finished.json"
    advice = "delete it, and the run is scored again from its last checkpoint"
    summary = read_json(file, missing=None, advice=advice)
    try:
        return None if summary is None else _restore_nonfinite(summary)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunDirectoryError(f"{file} is damaged: {advice}.") from error


def read_provenance(path: Path) -> list[dict[str, Any]]:
    """Return one entry per start of the run in the directory `path`."""
    file = path / "provenance.json"
    advice = "it only says where the run was trained; delete it to continue without"
    starts = read_json(file, missing=[], advice=advice)
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise RunDirectoryError(f"{file} is damaged: {advice}.")
    return starts


def read_json(path: Path, *, missing: Any, advice: str) -> Any:
    """Return what the file holds, or `missing` without it; `advice` is for one that is damaged."""
    try:
        with _explained(path):
            if not path.exists():
                return missing
            return json.loads(read_regular(path, at_most=_LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}): {advice}.") from error

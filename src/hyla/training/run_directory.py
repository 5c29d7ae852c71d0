"""A run is a directory, named by the hash of its config and held by one process at a time.

``RUNS/<name>-<first 12 hex digits of the config's fingerprint>/`` holds

- ``config.json``: the resolved config; its fingerprint is the identity of the run;
- ``provenance.json``: one entry per start: versions, device, git commit, time;
- ``metrics.jsonl``: one JSON object per line, each with its ``step``;
- ``checkpoint-*.safetensors``: see `hyla.training.checkpoint`;
- ``lock``: held by the process that trains, and says which one that is;
- ``finished.json``: the final summary; it exists once the run is complete.

JSON has no NaN or infinity. In ``metrics.jsonl`` and ``finished.json`` such a number is written
as ``null``, and the record's ``"nonfinite"`` entry says what it was and where, as a JSON pointer:
``{"step": 7, "loss": [0.5, null], "nonfinite": {"/loss/1": "nan"}}``. Any JSON reader can read
that; `RunDirectory.metrics` puts the numbers back.
"""

import hashlib
import json
import math
import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch

from hyla import __version__
from hyla.training.checkpoint import JSON, write_atomically

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NONFINITE = "nonfinite"


class RunDirectoryError(RuntimeError):
    """The directory of a run cannot be used as it is."""


class RunBusyError(RunDirectoryError):
    """Another process is training this run."""


def fingerprint(config: Mapping[str, JSON]) -> str:
    """Return the SHA-256 of the config's canonical JSON, in hex.

    Canonical: keys sorted, no white space, floats as Python's ``repr``, ASCII only. Note that
    ``1`` and ``1.0`` are different configs.
    """
    try:
        canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise ValueError(f"A config holds finite numbers only: {error}") from error
    return hashlib.sha256(canonical.encode()).hexdigest()


def directory_of(root: Path, name: str, config: Mapping[str, JSON]) -> Path:
    """Return where the run with this config lives, whether or not it exists."""
    return Path(root) / f"{name}-{fingerprint(config)[:12]}"


class RunDirectory:
    """The directory of one run, locked for this process until `close` (or the process's end)."""

    def __init__(self, path: Path, fingerprint: str, lock: IO[str]) -> None:
        """Prefer `RunDirectory.open`, which takes the lock and checks the config."""
        self.path = path
        self.fingerprint = fingerprint
        self.finished: dict[str, Any] | None = read_finished(path)
        self._lock = lock
        self._metrics_path = path / "metrics.jsonl"
        # Unbuffered: a line is with the operating system, and survives a kill, once written.
        self._metrics = self._metrics_path.open("ab", buffering=0)

    @classmethod
    def open(cls, root: Path, name: str, config: dict[str, Any]) -> "RunDirectory":
        """Create, or reopen, the directory of the run with this config, and lock it.

        Raises:
            RunBusyError: another process holds the run.
            RunDirectoryError: the directory holds another config, or cannot be locked.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"A run's name becomes a directory: {name!r} must consist of letters, digits, "
                "'.', '_' and '-', and start with a letter or digit."
            )
        identity = fingerprint(config)
        path = directory_of(root, name, config)
        path.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(path / "lock")
        try:
            _write_or_check_config(path / "config.json", config, identity)
            if read_finished(path) is None:
                _add_provenance(path / "provenance.json")
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
            self._lock.truncate(0)  # nobody holds it now; the file stays, as others may wait on it
            self._lock.close()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append `record`, which has an integer ``step``, to ``metrics.jsonl``."""
        step = record.get("step")
        if not isinstance(step, int):
            raise ValueError(f"A metrics record needs an integer 'step', to rewind by; got {step}")
        line = (_dumps(record) + "\n").encode()
        size_before = os.fstat(self._metrics.fileno()).st_size
        try:
            written = self._metrics.write(line)
        except OSError as error:
            raise RunDirectoryError(f"Cannot write to {self._metrics_path}: {error}") from error
        if written != len(line):
            self._metrics.truncate(size_before)
            raise RunDirectoryError(f"Disk full: {self._metrics_path} cannot take another record.")

    def sync(self) -> None:
        """Force the metrics to disk.

        Before saving a checkpoint, so that even a power cut leaves no checkpoint whose metrics
        are missing; a kill alone never does.
        """
        os.fsync(self._metrics.fileno())

    def rewind(self, step: int) -> None:
        """Forget what was logged after `step`, the step of the checkpoint resumed from.

        A torn last line goes too. What the resumed run then logs makes the file the same as an
        uninterrupted run's, provided that a step's records are logged before its checkpoint is
        saved. Without a checkpoint, rewind to step -1: everything goes.
        """
        content = self._metrics_path.read_bytes()
        kept = b"".join(
            line for line, record in _records(self._metrics_path, content) if record["step"] <= step
        )
        if kept == content:
            return
        self._metrics.close()
        write_atomically(self._metrics_path, kept)
        self._metrics = self._metrics_path.open("ab", buffering=0)

    def metrics(self) -> list[dict[str, Any]]:
        """Return every complete record logged so far, NaN and infinities restored."""
        return read_metrics(self.path)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as complete."""
        write_atomically(self.path / "finished.json", (_dumps(summary) + "\n").encode())
        self.finished = read_finished(self.path)


# --- the lock --------------------------------------------------------------------------------


def _take_lock(path: Path) -> IO[str]:
    """Lock `path` until the returned file is closed, which the kernel does for a killed process."""
    file = path.open("a+", encoding="utf-8")
    try:
        if not _try_lock(file):
            file.seek(0)
            raise RunBusyError(_describe_holder(path.parent, file.read()))
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        file.truncate(0)
        file.write(json.dumps(holder) + "\n")
        file.flush()
    except OSError as error:
        file.close()
        raise RunDirectoryError(
            f"Cannot lock {path}: {error}. Keep the runs on a file system that supports locks."
        ) from error
    except BaseException:
        file.close()
        raise
    return file


if os.name == "nt":
    import msvcrt

    def _try_lock(file: IO[str]) -> bool:
        # Windows locks bytes and then refuses to read them: lock one far beyond the holder's name.
        file.seek(1 << 30)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _describe_holder(run: Path, text: str) -> str:
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
        write_atomically(path, (text + "\n").encode())
        return
    try:
        same = fingerprint(json.loads(path.read_text(encoding="utf-8"))) == identity
    except ValueError:
        same = False
    if not same:
        raise RunDirectoryError(
            f"{path} is not the config of this run ({identity[:12]}): it was edited, or another "
            "config has the same short hash. Move the directory away, or use another name."
        )


def _add_provenance(path: Path) -> None:
    """Record this start; a run resumed elsewhere has several, and its figures come from all."""
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        starts = []
    cuda = torch.cuda.is_available()
    starts.append(
        {
            "started": _now(),
            "hyla": __version__,
            "git_commit": _git_commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})",
            "cuda": torch.version.cuda if cuda else None,
            "platform": platform.platform(),
        }
    )
    write_atomically(path, (json.dumps(starts, indent=2) + "\n").encode())


def _git_commit() -> str | None:
    """Return the commit of this source tree, with ``-dirty`` if edited; None for an installation.

    An installed copy may lie inside somebody else's repository, whose commit says nothing here;
    it is not tracked there.
    """
    source = Path(__file__)
    try:
        for command in (
            ["git", "ls-files", "--error-unmatch", source.name],
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        ):
            answer = subprocess.run(
                command, cwd=source.parent, capture_output=True, text=True, check=True, timeout=10
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- records -----------------------------------------------------------------------------------


def _records(path: Path, content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield (line, record) of JSON lines, up to a torn end.

    A kill tears the last line only, a power cut perhaps several; a broken line with good ones
    after it was made by neither, and is for a person to look at.
    """
    broken = 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        if not isinstance(record, dict) or "step" not in record:
            broken = broken or number
        elif broken:
            raise RunDirectoryError(
                f"{path}, line {broken}, is not a metrics record: repair or remove that line."
            )
        else:
            yield line, record


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
    """Return the complete records of the run directory `path`, without locking it."""
    file = path / "metrics.jsonl"
    return [_restore_nonfinite(record) for _, record in _records(file, file.read_bytes())]


def read_finished(path: Path) -> dict[str, Any] | None:
    """Return the final summary of the run directory `path`; None if it is not complete."""
    try:
        text = (path / "finished.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return _restore_nonfinite(json.loads(text))

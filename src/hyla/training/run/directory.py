"""A run is a directory, named by the hash of its config and held by one process at a time.

``RUNS/<name>-<first 12 hex digits of the config's fingerprint>/`` holds

- ``config.json``: the resolved config; its fingerprint is the identity of the run;
- ``provenance.json``: one entry per start of training: versions, device, git commit, time;
- ``metrics.jsonl``: one JSON object per line, each with its ``step``; that of step 0 says how large
  the branches of the models are (`read_branch_scales`), all others are metrics;
- ``checkpoint-*``: see `hyla.training.run.checkpoints`;
- ``lock``: held by the process that trains, and says which one that is;
- ``finished.json``: the final summary; it exists once the run is complete.
"""

import errno
import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from hyla import __version__
from hyla._environment import environment, git_commit
from hyla._files import read_regular, write_atomically
from hyla.training.identity import fingerprint
from hyla.training.run.errors import RunDirectoryError, explained
from hyla.training.run.lock import now, take_lock
from hyla.training.run.reading import (
    BRANCH_SCALES,
    directory_of,
    read_finished,
    read_metrics,
    read_provenance,
)
from hyla.training.run.records import RESTORE, dump_record, parse_records

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
    def open(cls, root: Path, name: str, config: dict[str, Any]) -> "RunDirectory":
        """Create, or reopen, the directory of the run with this config, and lock it.

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
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
        lock = take_lock(path / "lock")
        try:
            _write_or_check_config(path / "config.json", config, identity)
            return cls(path, identity, lock)
        except BaseException:
            lock.close()
            raise

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the run for other processes."""
        self._metrics.close()
        if not self._lock.closed:
            with suppress(OSError):  # the name in it is a courtesy
                self._lock.truncate(0)  # the file itself stays, as others may wait on it
            self._lock.close()

    def record_start(self, device: torch.device, beside: Sequence[str] = ()) -> None:
        """Add this start to the run's provenance: its figures come from all of them.

        `device` is where it computes, and `beside` names the runs that train together with it.
        """
        start = {
            "started": now(),
            "hyla": __version__,
            "git_commit": git_commit(),
            **environment(device),
            "platform": platform.platform(),
        }
        company = {"beside": list(beside)} if beside else {}
        starts = [*read_provenance(self.path), start | company]
        self.keep("provenance.json", (json.dumps(starts, indent=2) + "\n").encode())

    def log(self, record: Mapping[str, Any]) -> None:
        """Append `record`, which has an integer ``step``, to ``metrics.jsonl``."""
        step = record.get("step")
        if not isinstance(step, int):
            raise ValueError(f"A metrics record needs an integer 'step', to rewind by; got {step}")
        line = (dump_record(record) + "\n").encode()
        with explained(self._metrics_path):
            size_before = os.fstat(self._metrics.fileno()).st_size
            if self._metrics.write(line) != len(line):
                self._metrics.truncate(size_before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def log_branch_scales(self, record: Mapping[str, Any]) -> None:
        """Append what `read_branch_scales` returns; no reader of metrics sees it."""
        self.log({"step": 0, BRANCH_SCALES: record})

    def sync(self) -> None:
        """Force the metrics to disk.

        Before saving a checkpoint, so that even a power cut leaves no checkpoint whose metrics
        are missing; a kill alone never does.
        """
        with explained(self._metrics_path):
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
        with explained(self._metrics_path):
            content = read_regular(self._metrics_path)
        lines = content.splitlines(keepends=True)
        records = [] if step < 0 else list(parse_records(self._metrics_path, lines))
        records = [(line, record) for line, record in records if record["step"] <= step]
        if last > 0 and not any(record["step"] == last for _, record in records):
            lost = f"what was logged up to step {last} is not in {self._metrics_path}"
            if content:
                raise RunDirectoryError(f"{lost}: it was damaged. {RESTORE}.")
            warn(f"{lost}, which is empty; the run goes on without")
        kept = b"".join(line for line, _ in records)
        if kept == content:
            return
        self._metrics.close()
        try:
            with explained(self._metrics_path):
                write_atomically(self._metrics_path, kept)
        finally:
            self._metrics = self._open_metrics()

    def metrics(self) -> list[dict[str, Any]]:
        """Return every complete record logged so far, NaN and infinities restored."""
        return read_metrics(self.path)

    def keep(self, name: str, content: bytes) -> None:
        """Put a file of the caller's beside the others."""
        with explained(self.path / name):
            write_atomically(self.path / name, content)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as complete."""
        self.keep("finished.json", (dump_record(summary) + "\n").encode())
        self.finished = read_finished(self.path)

    def _open_metrics(self) -> IO[bytes]:
        # Unbuffered: a line is with the operating system, and survives a kill, once written.
        with explained(self._metrics_path):
            return self._metrics_path.open("ab", buffering=0)


def _write_or_check_config(path: Path, config: dict[str, Any], identity: str) -> None:
    if not path.exists():
        text = json.dumps(config, indent=2, sort_keys=True, allow_nan=False)
        with explained(path):
            write_atomically(path, (text + "\n").encode())
        return
    try:
        with explained(path):
            same = fingerprint(json.loads(read_regular(path))) == identity
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise RunDirectoryError(
            f"{path} is not the config of this run ({identity[:12]}): it was edited, or another "
            "config has the same short hash. Move the directory away, or use another name."
        )

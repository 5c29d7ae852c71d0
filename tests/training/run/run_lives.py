"""Processes that train a tiny run and die as they are told: at any write, by any signal.

Run as a program, this is a server: for each line on its standard input it forks a process, lets it
train, and writes how that ended. Forking one that has imported everything takes milliseconds.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FINISHED, INTERRUPTED, REFUSED, FULL, KILLED, BROKEN = 0, 75, 16, 28, 9, 1
"""Exit statuses: `REFUSED` says that a person has to look at a file, `BROKEN` is a bug."""


@dataclass(frozen=True)
class Fate:
    """What happens to a process, and at which of the moments that it passes through."""

    what: str = "nothing"
    """"nothing", "SIGTERM", "kill", or "full" for a disk that has no room from then on."""
    of: str = "step"
    """The kind of moment: "step", "batch" of an evaluation, or "change" of the disk."""
    at: int = 0
    """Which one of that kind, counted from 1."""


class Lives:
    """The server, as a test sees it."""

    def __init__(self, kind: str, corpus: Path | None = None):
        command = [sys.executable, __file__, kind, *([] if corpus is None else [str(corpus)])]
        path = os.pathsep.join(filter(None, sys.path))
        self._server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )

    def live(self, root: Path, fate: Fate, *, saves_often: bool = False) -> int:
        """Let a process train the run under `root`; return its exit status."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        order = {"root": str(root), "fate": asdict(fate), "saves_often": saves_often}
        print(json.dumps(order), file=self._server.stdin, flush=True)
        answer = json.loads(self._server.stdout.readline())
        assert answer["status"] != BROKEN, answer["said"]
        return answer["status"]

    def close(self) -> None:
        self._server.communicate()


# --- the server ---------------------------------------------------------------------------------


def _serve(kind: str, *corpus: str) -> None:
    train = _trainer(kind, *corpus)
    for line in sys.stdin:
        order = json.loads(line)
        said = Path(order["root"]).with_suffix(".said")
        child = os.fork()
        if child == 0:
            _live(train, order, said)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        answer = {"status": code, "said": said.read_text()[-5000:] if code == BROKEN else ""}
        print(json.dumps(answer), flush=True)


def _live(train: Any, order: dict[str, Any], said: Path) -> None:
    """Train, and exit; as a forked process, with whatever it says in a file."""
    status = BROKEN
    try:
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = train(order)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _trainer(kind: str, *corpus: str) -> Any:
    import torch

    from hyla.training import Interrupted
    from hyla.training import train as train_population
    from hyla.training.population.cohort import Cohort
    from hyla.training.run import loop
    from hyla.training.run.errors import CheckpointError, RunDirectoryError

    torch.set_num_threads(1)
    if kind == "language":
        from hyla.tasks.language import Corpus
        from hyla.training.language import train_language
        from hyla.training.language.steps import Steps
        from tiny_text import tiny_language_config

        tokens = Corpus.open(*corpus)
        config = tiny_language_config(tokens)
        owner, name = Steps, "take"

        def train(root: str) -> None:
            train_language(config, tokens, root=root, device="cpu")
    else:
        from tiny_runs import short_config

        owner, name = Cohort, "train"

        def train(root: str) -> None:
            train_population(short_config(), root=root, device="cpu")

    def live(order: dict[str, Any]) -> int:
        moments = _Moments(Path(order["root"]), Fate(**order["fate"]))
        moments.before(owner, name, "step")
        moments.before(loop._Loop, "_before_batch", "batch")
        moments.at_writes()
        loop.SECONDS_BETWEEN_STOPS = 0.0  # slices of one step
        loop.SECONDS_BETWEEN_CHECKPOINTS = 0.0 if order["saves_often"] else 1e9
        loop.SECONDS_TO_THE_FIRST_CHECKPOINT = loop.SECONDS_BETWEEN_CHECKPOINTS
        loop.MOST_TIME_SAVING = float("inf")
        try:
            train(order["root"])
        except Interrupted:
            return INTERRUPTED
        except (RunDirectoryError, CheckpointError) as error:
            traceback.print_exc()
            if not moments.disk_is_full:
                return REFUSED
            return FULL if "No space left" in str(error) or "Disk full" in str(error) else BROKEN
        return FINISHED

    return live


class _Moments:
    """Counts the moments of a process and lets its fate happen at one of them."""

    def __init__(self, root: Path, fate: Fate):
        self._root, self._fate = str(root), fate
        self._passed: Counter[str] = Counter()
        self.disk_is_full = False

    def before(self, owner: Any, name: str, kind: str) -> None:
        """Let each call of a function be a moment of that kind."""
        original = getattr(owner, name)

        def passed(*args: Any, **kwargs: Any) -> Any:
            self._pass(kind)
            return original(*args, **kwargs)

        setattr(owner, name, passed)

    def at_writes(self) -> None:
        """Let everything that changes the disk be a moment, and each half of what is written."""
        original_open, original_sync = Path.open, os.fsync

        def open_counted(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            file = original_open(path, mode, *args, **kwargs)
            writes = "r" not in mode and str(path).startswith(self._root)
            return _Written(file, self) if writes else file

        def sync_counted(descriptor: int) -> None:
            self._change()
            original_sync(descriptor)

        def audited(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open":
                path, _, flags = arguments
                changes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            else:
                changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
                path = arguments[0] if changes else ""
            if changes and str(path).startswith(self._root) and event != "os.remove":
                self._change()
            elif changes and str(path).startswith(self._root):
                self._pass("change")  # a full disk is no obstacle to removing

        setattr(Path, "open", open_counted)  # noqa: B010, of the type that pathlib says
        os.fsync = sync_counted
        sys.addaudithook(audited)

    def _pass(self, kind: str) -> None:
        self._passed[kind] += 1
        if (kind, self._passed[kind]) != (self._fate.of, self._fate.at):
            return
        if self._fate.what == "kill":
            os._exit(KILLED)
        if self._fate.what == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        if self._fate.what == "full":
            self.disk_is_full = True

    def _change(self) -> None:
        self._pass("change")
        if self.disk_is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Written:
    """A file whose writes have a moment in their middle."""

    def __init__(self, file: Any, moments: _Moments):
        self._file, self._moments = file, moments

    def write(self, content: bytes) -> int:
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._moments._change()
        return half + self._file.write(content[half:])

    def truncate(self, size: int) -> int:
        self._moments._pass("change")
        return self._file.truncate(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Written":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


if __name__ == "__main__":
    _serve(*sys.argv[1:])

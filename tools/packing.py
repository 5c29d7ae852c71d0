"""Run directories as files of at most 15 MB that can be carried from one machine to another."""

import gzip
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from hyla.training.run.checkpoints.base import newest_step, step_of
from hyla.training.run.errors import RunBusyError
from hyla.training.run.lock import take_lock
from hyla.training.run.reading import read_finished

PART_BYTES = 15_000_000
_NAME = "runs.tar.gz"


def pack(root: Path, folder: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Write the run directories under `root` to FOLDER/runs.tar.gz.00, .01, …; return these.

    Finished runs come first, and of checkpoints the newest alone: where only the first parts can be
    carried, they hold what took longest. Compiled code stays: it lies beside the runs, and fits the
    machine that compiled it.
    """
    runs = [path.parent for path in root.glob("*/config.json")]
    if not runs:
        raise ValueError(f"{root} has no run directories to pack: give --root")
    folder.mkdir(parents=True, exist_ok=True)
    for old in _parts(folder):  # a part of before would be taken for one of these
        old.unlink()
    with tempfile.TemporaryFile(dir=folder) as whole:
        with tarfile.open(fileobj=whole, mode="w:gz") as archive:
            for run in sorted(runs, key=lambda run: (read_finished(run) is None, run.name)):
                for file in _files_to_carry(run):
                    archive.add(file, arcname=f"{run.name}/{file.name}")
        whole.seek(0)
        for number, part in enumerate(iter(lambda: whole.read(part_bytes), b"")):
            (folder / f"{_NAME}.{number:02d}").write_bytes(part)
    return _parts(folder)


def _files_to_carry(run: Path) -> list[Path]:
    """Return what is worth carrying.

    Checkpoints that are folders, of language models, are not, nor is what was set aside, or was
    being written when a process was killed.
    """
    newest = newest_step(run)

    def wanted(path: Path) -> bool:
        if path.name.startswith("checkpoint-"):
            return step_of(path) is not None and step_of(path) == newest
        return path.name != "lock" and not path.name.startswith(".")

    return sorted(path for path in run.iterdir() if path.is_file() and wanted(path))


def unpack(folder: Path, root: Path, say: Callable[[str], None] = print) -> list[str]:
    """Put packed run directories under `root`; return the names of those that were put there.

    One that is there already and as far, or further, stays, and so does one that is being trained,
    which is said. Raises a ValueError where parts are missing or damaged, with the runs put there
    that came whole.
    """
    parts = [part for place, part in enumerate(_parts(folder)) if _number(part) == place]
    if not parts:
        raise ValueError(f"{folder} has no {_NAME}.00: give the folder that --pack wrote")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as aside:
        came, error = _extract(parts, Path(aside))
        taken = [run.name for run in came if _take(run, root / run.name, say)]
    if error is not None:
        raise ValueError(
            f"{folder} does not hold all of what was packed, or it is damaged: {error}. "
            f"{len(taken)} runs that came whole were put under {root}"
        ) from error
    return taken


def _extract(parts: Sequence[Path], aside: Path) -> tuple[list[Path], Exception | None]:
    """Return the run directories that came whole, and what kept the rest from coming."""
    came: dict[Path, None] = {}
    with tempfile.TemporaryFile(dir=aside) as joined:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined)
        joined.seek(0)
        try:
            with gzip.GzipFile(fileobj=joined) as whole:
                with tarfile.open(fileobj=whole, mode="r|") as archive:
                    for member in archive:
                        came[aside / PurePosixPath(member.name).parts[0]] = None
                        archive.extract(member, aside, filter="data")
                while whole.read(1 << 20):  # to its end, where its checksum is
                    pass
        except EOFError as error:  # cut off in the last of these
            return list(came)[:-1], error
        except (tarfile.ReadError, zlib.error, OSError) as error:  # nobody knows since where
            return [], error
    return list(came), None


def _take(run: Path, place: Path, say: Callable[[str], None]) -> bool:
    """Move a run to its place, unless one that stays is there; return whether it was moved."""
    if not place.exists():
        run.rename(place)
        return True
    try:
        with take_lock(place / "lock"):
            if _progress(place) >= _progress(run):
                return False
            place.rename(run.with_name(f".replaced-{run.name}"))  # beside it, to be deleted
            run.rename(place)
    except RunBusyError as error:
        say(str(error))
        return False
    return True


def _progress(path: Path) -> tuple[bool, int]:
    return read_finished(path) is not None, newest_step(path) or 0


def _parts(folder: Path) -> list[Path]:
    found = [p for p in folder.glob(f"{_NAME}.*") if p.suffix[1:].isdigit()]
    return sorted(found, key=_number)


def _number(part: Path) -> int:
    return int(part.suffix[1:])

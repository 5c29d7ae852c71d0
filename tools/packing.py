"""Run directories as files of at most 15 MB that can be carried from one machine to another."""

import gzip
import shutil
import tarfile
import tempfile
from pathlib import Path

from hyla.results.runs import read_run

PART_BYTES = 15_000_000
_NAME = "runs.tar.gz"


def pack(root: Path, folder: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Write the run directories under `root` to FOLDER/runs.tar.gz.00, .01, …; return these.

    Compiled code stays: it lies beside the runs, and fits the machine that compiled it.
    """
    runs = sorted(path.parent for path in root.glob("*/config.json"))
    if not runs:
        raise ValueError(f"{root} has no run directories to pack: give --root")
    folder.mkdir(parents=True, exist_ok=True)
    for old in _parts(folder):  # a part of before would be taken for one of these
        old.unlink()
    with tempfile.TemporaryFile(dir=folder) as whole:
        with tarfile.open(fileobj=whole, mode="w:gz") as archive:
            for run in runs:
                for file in sorted(path for path in run.iterdir() if path.name != "lock"):
                    archive.add(file, arcname=f"{run.name}/{file.name}")
        whole.seek(0)
        for number, part in enumerate(iter(lambda: whole.read(part_bytes), b"")):
            (folder / f"{_NAME}.{number:02d}").write_bytes(part)
    return _parts(folder)


def unpack(folder: Path, root: Path) -> list[str]:
    """Put packed run directories under `root`; return the names of those that were put there.

    One that is there already and as far, or further, stays.
    """
    parts = _parts(folder)
    if not parts:
        raise ValueError(f"{folder} has no {_NAME}.00: give the folder that --pack wrote")
    root.mkdir(parents=True, exist_ok=True)
    taken = []
    with (
        tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as aside,
        tempfile.TemporaryFile(dir=root) as joined,
    ):
        try:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, joined)
            joined.seek(0)
            with gzip.GzipFile(fileobj=joined) as whole:
                with tarfile.open(fileobj=whole, mode="r|") as archive:
                    archive.extractall(aside, filter="data")
                while whole.read(1 << 20):  # to its end, where its checksum is
                    pass
        except (tarfile.ReadError, EOFError, OSError) as error:
            raise ValueError(
                f"{folder} does not hold all of what was packed, or it is damaged: {error}"
            ) from error
        for run in sorted(Path(aside).iterdir()):
            place = root / run.name
            if place.exists() and _progress(place) >= _progress(run):
                continue
            shutil.rmtree(place, ignore_errors=True)
            run.rename(place)
            taken.append(run.name)
    return taken


def _progress(path: Path) -> tuple[bool, int]:
    run = read_run(path)
    return run.summary is not None, run.checkpoint_step or 0


def _parts(folder: Path) -> list[Path]:
    found = [p for p in folder.glob(f"{_NAME}.*") if p.suffix[1:].isdigit()]
    return sorted(found, key=lambda path: int(path.suffix[1:]))

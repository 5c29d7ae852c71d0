"""Which run directories lie in a folder, and in the folders of that (`runs/`, `runs/lab/`)."""

import os
from collections.abc import Iterator
from pathlib import Path

from hyla._errors import nearest
from hyla.training.run.errors import NoRunError


def run_folders(root: Path) -> Iterator[Path]:
    """Yield the run directories under `root`; links that lead out of it are not followed."""
    inside = root.resolve()
    for pattern in ("*/config.json", "*/*/config.json"):
        for file in root.glob(pattern):
            if _lies_in(inside, file.parent):
                yield file.parent


def find_runs(name: str, root: Path) -> list[Path]:
    """Return the run that is given as a folder or as a name under `root`, or those of a folder."""
    path = _folder(name, root)
    if path is not None:
        return sorted(run_folders(path)) or [path] if holds_runs(name, root) else [path]
    folders = sorted(run_folders(root))
    if named := [path for path in folders if path.name == name]:
        return named
    names = sorted({path.name for path in folders})
    known = f"{root} holds {', '.join(names[:5])}" if names else f"{root} holds no runs"
    raise NoRunError(
        f"there is no run {name}{nearest(name, names)}; {known}. `hyla train` makes them"
    )


def holds_runs(name: str, root: Path) -> bool:
    """Whether `find_runs` takes the name for a folder of runs, and not for a run."""
    path = _folder(name, root)
    return path is not None and not (path / "config.json").exists()


def _folder(name: str, root: Path) -> Path | None:
    return next((path for path in (Path(name), root / name) if path.is_dir()), None)


def _lies_in(root: Path, folder: Path) -> bool:
    """Whether a folder and all files in it are really there, whatever links say."""
    try:
        with os.scandir(folder) as entries:
            links = [Path(entry.path) for entry in entries if entry.is_symlink()]
        return all(part.resolve().is_relative_to(root) for part in (folder, *links))
    except (OSError, RuntimeError):  # not to be looked into, or a circle of links
        return False

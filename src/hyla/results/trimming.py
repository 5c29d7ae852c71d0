"""Finished runs without what only continuing them would need."""

from pathlib import Path

import safetensors

from hyla.results.finished import final_checkpoint, hold, is_at_its_place
from hyla.results.runs import read_run
from hyla.training.run.checkpoints.file import FileCheckpoints

_OPTIMISER = ("first_moment/", "second_moment/")


def drop_optimiser_state(path: Path) -> None:
    """Leave a finished run its models alone: about a sixth of the size, and still loadable.

    A lab keeps hundreds of runs, and a finished one is never trained further. One that is not
    finished, or whose last checkpoint is damaged, stays as it is.
    """
    run = read_run(path)
    if run.summary is None or not is_at_its_place(run) or _is_trimmed(path):
        return
    with hold(run):
        found = final_checkpoint(run)
        if found is None or found.tensors is None:
            return
        kept = found.path
        models = {name: t for name, t in found.tensors.items() if not name.startswith(_OPTIMISER)}
        if len(models) < len(found.tensors):
            kept = FileCheckpoints(path, run.fingerprint).save(found.step, models, found.meta)
        for other in _checkpoints(path):
            if other != kept:
                other.unlink()


def _is_trimmed(path: Path) -> bool:
    """Whether nothing is to be dropped, by the names in the files: so it costs next to nothing."""
    try:
        names = [name for file in _checkpoints(path) for name in _names(file)]
    except (OSError, safetensors.SafetensorError):  # damaged, or gone meanwhile
        return False
    return not any(name.startswith(_OPTIMISER) for name in names)


def _checkpoints(path: Path) -> list[Path]:
    return list(path.glob("checkpoint-*.safetensors"))


def _names(file: Path) -> list[str]:
    with safetensors.safe_open(file, framework="pt") as stored:
        return list(stored.keys())

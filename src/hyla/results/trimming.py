"""Finished runs without what only continuing them would need."""

from pathlib import Path

from hyla.results.runs import StoredRun, read_run
from hyla.training.run.checkpoints.base import Checkpoint
from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.reading import directory_of

_OPTIMISER = ("first_moment/", "second_moment/")


def hold(run: StoredRun) -> RunDirectory:
    """Open a run's directory to change what lies there, so that nobody else does; as a context."""
    return RunDirectory.open(run.path.parent, _name(run), run.config)


def is_at_its_place(run: StoredRun) -> bool:
    """Whether the directory has the name that is the run's: `hold` would open another else."""
    return directory_of(run.path.parent, _name(run), run.config) == run.path


def final_checkpoint(run: StoredRun) -> Checkpoint | None:
    """Return the checkpoint of a finished run's end, and never one before it."""
    found = FileCheckpoints(run.path, run.fingerprint).latest()
    at_the_end = found is not None and run.summary and found.step == run.summary["steps"]
    return found if at_the_end else None


def drop_optimiser_state(path: Path) -> None:
    """Leave a finished run its models alone: about a sixth of the size, and still loadable.

    A lab keeps hundreds of runs, and a finished one is never trained further. One that is not
    finished, or whose last checkpoint is damaged, stays as it is.
    """
    run = read_run(path)
    if run.summary is None or not is_at_its_place(run):
        return
    with hold(run):
        found = final_checkpoint(run)
        if found is None or found.tensors is None:
            return
        if not any(name.startswith(_OPTIMISER) for name in found.tensors):
            return
        models = {name: t for name, t in found.tensors.items() if not name.startswith(_OPTIMISER)}
        kept = FileCheckpoints(path, run.fingerprint).save(found.step, models, found.meta)
        for other in path.glob("checkpoint-*.safetensors"):
            if other != kept:
                other.unlink()


def _name(run: StoredRun) -> str:
    return run.path.name.rpartition("-")[0]

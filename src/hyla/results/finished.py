"""Finished runs as things to be changed: held by one process, at their place, at their end."""

from hyla.results.runs import StoredRun
from hyla.training.run.checkpoints.base import Checkpoint
from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.reading import directory_of


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


def _name(run: StoredRun) -> str:
    return run.path.name.rpartition("-")[0]

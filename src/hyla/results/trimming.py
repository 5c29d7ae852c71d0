"""Finished runs without what only continuing them would need."""

from pathlib import Path

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

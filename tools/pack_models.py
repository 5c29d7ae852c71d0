"""Make one model of a run one of the explorer's.

    python tools/pack_models.py RUN MEMBER NAME

Weights are stored in half precision, unless that changes the model measurably: its headline metric
on a few thousand instances of known and of held-out compositions by more than a small tolerance.
What was measured is printed, and written beside the weights, as are the scores of the models beside
it that differ by their seed alone: in its run, and in the finished runs of the same folder.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hyla.explorer.packed import Description, shipped_folder, write_packed
from hyla.nn import Transformer
from hyla.results.runs import StoredRun, load_model, read_run, read_runs
from hyla.tasks import Batch, Task
from hyla.training.run.errors import CheckpointError, RunDirectoryError

INSTANCES = 4096
"""Instances of each split that both precisions are compared on."""
TOLERANCE = 0.002
"""A change of the headline metric that is too small to matter."""
_BATCH = 512


def pack(run: Path, member: int, name: str, *, folder: Path | None = None) -> dict[str, Any]:
    """Pack a member of a finished run as NAME; return what was measured, and the size."""
    model, config = load_model(run, member)
    stored = read_run(run)
    if stored.summary is None:
        raise RunDirectoryError(f"{run} is not finished: train it to its end, then pack it")
    task, seed = config.build_task(), config.members[member].seed
    rounded = Transformer(config.model)
    rounded.load_state_dict({name: x.half().float() for name, x in model.state_dict().items()})
    headline = task.headline
    measured: dict[str, Any] = {"metric": headline, "instances": INSTANCES}
    largest = 0.0
    for split in ("test", "ood"):
        before, after = (_score(one, task, split, seed) for one in (model, rounded))
        measured[split] = {"float32": before, "float16": after}
        largest = max(largest, abs(after - before))
    dtype = torch.float16 if largest <= TOLERANCE else torch.float32
    measured["stored"] = str(dtype).removeprefix("torch.")
    tree = config.to_tree()
    of_seeds = _scores_of_seeds(stored, member, headline)
    about = Description(
        config=tree | {"members": [tree["members"][member]]},
        scores=of_seeds[str(seed)],
        provenance=stored.provenance,
        source=f"{stored.path.resolve().name}, member {member}",
        precision=measured,
        scores_of_seeds=of_seeds,
        seconds=stored.summary["seconds"],
        models=stored.trained_at_once,
    )
    folder = folder or shipped_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return measured | {"bytes": write_packed(folder / name, model, dtype, about)}


def _scores_of_seeds(run: StoredRun, member: int, headline: str) -> dict[str, dict[str, float]]:
    """Return the final scores by split of a model and of those that differ by their seed alone."""
    beside = [other for other in read_runs(run.path.resolve().parent) if other.summary is not None]
    scores = {}
    for other in (*beside, run):  # its own run has the last word about a seed
        if other.method != run.method:
            continue
        assert other.summary is not None
        for settings, result in zip(other.members, other.summary["members"], strict=True):
            if settings | {"seed": None} == run.members[member] | {"seed": None}:
                scores[settings["seed"]] = {
                    split: result["metrics"][f"{split}/{headline}"]
                    for split in run.config["evaluation"]["splits"]
                    if f"{split}/{headline}" in result["metrics"]
                }
    return {str(seed): scores[seed] for seed in sorted(scores)}


@torch.no_grad()
def _score(model: Transformer, task: Task, split: str, seed: int) -> float:
    """The headline metric on the first instances of a split."""
    objective = task.objective
    sampler = task.sampler(split, seeds=[seed], batch_size=_BATCH)
    totals: dict[str, torch.Tensor] = {}
    for index in range(INSTANCES // _BATCH):
        batch = Batch(*(field[0] for field in sampler(index)))
        logits = model(batch.inputs)
        assert isinstance(logits, torch.Tensor)
        for key, value in objective.sums(logits, batch).items():
            totals[key] = totals[key] + value if key in totals else value
    return float(objective.finish(totals)[objective.headline])


def main(arguments: Sequence[str] | None = None) -> None:
    """Pack from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("member", type=int, metavar="MEMBER")
    parser.add_argument("name", metavar="NAME", help="of the files, such as sraven-hyla")
    parser.add_argument("--folder", type=Path, help="where to (default: the package's own)")
    given = parser.parse_args(arguments)
    try:
        measured = pack(given.run, given.member, given.name, folder=given.folder)
    except (RunDirectoryError, CheckpointError) as error:
        parser.error(str(error))
    for split in ("test", "ood"):
        scores = ", ".join(f"{kind} {value:.4f}" for kind, value in measured[split].items())
        print(f"{split} {measured['metric']} on {measured['instances']} instances: {scores}")
    print(f"stored as {measured['stored']}, {measured['bytes'] / 1000:.0f} kB")


if __name__ == "__main__":
    main()

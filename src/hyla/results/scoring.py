"""Scoring the models of a finished run on what they were not scored on before.

How a run is watched does not change its models: whoever asks for a split more, or for more
instances, needs no training for that. The scores join those in the run's ``finished.json``.
"""

import math
from dataclasses import replace
from pathlib import Path

import torch

from hyla.results.finished import final_checkpoint, hold, is_at_its_place
from hyla.results.runs import StoredRun, read_run, scored_instances
from hyla.training import Evaluation, Interrupted, Population, config_from_tree
from hyla.training.devices import resolve_device
from hyla.training.population.cohort import Cohort
from hyla.training.population.population import EVALUATION_BATCH
from hyla.training.population.training import build_cohort
from hyla.training.run.errors import CheckpointError, RunDirectoryError
from hyla.training.run.stop import Stopped, StopRequest


def unscored_splits(run: StoredRun, asked: Evaluation) -> list[str]:
    """Return the splits on which a finished run's models were not scored, or on too little."""
    known = scored_instances(run)
    return [split for split in asked.splits if known.get(split, 0) < asked.final_instances]


def can_be_scored(run: StoredRun) -> bool:
    """Whether a finished run's models are there, under the name that is theirs."""
    return run.checkpoint_step is not None and is_at_its_place(run)


def score_rest(
    path: Path, asked: Evaluation, *, device: str = "auto", max_seconds: float = math.inf
) -> None:
    """Score a finished run's models on what is missing of `asked`, and keep that with the run.

    The numbers are those of a run that had been asked for it from the start. Raises `Interrupted`
    after a signal or `max_seconds`, with nothing changed.
    """
    stored = read_run(path)
    if not unscored_splits(stored, asked):
        return
    if not is_at_its_place(stored):
        raise RunDirectoryError(f"{path} was renamed: give it back its name to have it scored")
    where = resolve_device(device)
    with hold(stored) as directory:
        stored = read_run(path)  # nobody else writes now
        splits = unscored_splits(stored, asked)
        if not splits:  # another process was faster
            return
        assert stored.summary is not None
        with StopRequest(max_seconds=max_seconds) as stop:
            cohort = _trained(stored, replace(asked, splits=tuple(splits)), where)
            try:
                scores = cohort.evaluate(final=True, before_batch=stop.check)
            except Stopped:
                raise Interrupted(
                    f"stopped while scoring {path.name} ({stop.reason}); the same command scores "
                    "it, which it has to do in one go",
                    stop.reason,
                ) from None
        members = [
            member | {"metrics": member["metrics"] | {name: scores[name][i] for name in scores}}
            for i, member in enumerate(stored.summary["members"])
        ]
        instances = scored_instances(stored) | dict.fromkeys(splits, asked.final_instances)
        directory.record_start(where)
        directory.finish(stored.summary | {"members": members, "scored": instances})


def _trained(run: StoredRun, asked: Evaluation, device: torch.device) -> Cohort:
    """Return the models of a run as they were at its end; without what training would need."""
    config = config_from_tree(run.config)
    found = final_checkpoint(run)
    if found is None or found.tensors is None:
        raise CheckpointError(
            f"{run.path} has no intact checkpoint of its end to be scored: move the directory away "
            "to train it again"
        )

    def prepare(population: Population) -> None:
        if device.type == "cuda":  # where not all fit, that shows here
            for split in asked.splits:
                population.evaluate(split, min(asked.final_instances, EVALUATION_BATCH))

    cohort = build_cohort([config], asked, device, prepare, print)
    # A trimmed run has no optimiser state.
    cohort.resume(found.step, cohort.tensors() | dict(found.tensors), found.meta)
    return cohort

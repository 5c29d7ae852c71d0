"""Runs on disk as plain rows: what sweeps, figures and the explorer read.

Reading takes no locks and changes nothing, so it is safe while runs are being trained.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hyla.nn import Transformer
from hyla.training import TrainConfig, config_from_tree, load_run
from hyla.training.identity import fingerprint, method_key
from hyla.training.loading import task_of
from hyla.training.run.checkpoints.base import newest_step
from hyla.training.run.errors import RunDirectoryError
from hyla.training.run.reading import read_config, read_finished, read_metrics, read_provenance

Row = dict[str, Any]

ORIGIN = ("device", "hyla", "torch", "cuda", "python", "git_commit")
"""Columns that say what a row's numbers were computed with."""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run directory as it is on disk."""

    path: Path
    config: dict[str, Any]
    """The resolved config, as a tree."""
    summary: dict[str, Any] | None
    """What `train` returned; None while the run is not finished."""
    provenance: list[dict[str, Any]]
    """One entry per start: device, versions, commit."""

    @property
    def fingerprint(self) -> str:
        """What its checkpoints are marked with."""
        return fingerprint(self.config)

    @property
    def members(self) -> list[dict[str, Any]]:
        """The settings of each member of the population."""
        return self.config["members"]

    @functools.cached_property
    def method(self) -> str | None:
        """Key of what it computes; None of a language model, or of settings nobody knows now."""
        try:
            return method_key(config_from_tree(self.config))
        except ValueError:
            return None

    @property
    def trained_at_once(self) -> int:
        """How many models the seconds in its summary are of: its own, and those beside it."""
        own = len(self.members) if "members" in self.config else 1
        return own if self.summary is None else self.summary.get("models", own)

    @property
    def checkpoint_step(self) -> int | None:
        """Step of the newest checkpoint; None if there is none."""
        return newest_step(self.path)


def read_runs(root: Path | str) -> list[StoredRun]:
    """Return every run under `root`, by name; none if there is no such folder."""
    return [read_run(path.parent) for path in sorted(Path(root).glob("*/config.json"))]


def read_run(path: Path | str) -> StoredRun:
    """Return the run in one directory; a NoRunError if there is none."""
    path = Path(path)
    return StoredRun(
        path=path,
        config=read_config(path),
        summary=read_finished(path),
        provenance=read_provenance(path),
    )


def load_model(
    path: Path | str, member: int = 0, *, device: torch.device | str = "cpu"
) -> tuple[Transformer, TrainConfig]:
    """Return one member of a run, as its newest checkpoint has it, and the run's config.

    Raises:
        RunDirectoryError: there is no run, or it has settings that are not known here.
        CheckpointError: it has no such member, or no usable checkpoint yet.
    """
    if task_of(path) == "language":
        raise RunDirectoryError(f"{path} is a language model: `hyla generate` reads those")
    run = load_run(path)
    assert isinstance(run.config, TrainConfig)
    return run.model(member, device=device), run.config


def untrained_like(model: Transformer, seed: int) -> Transformer:
    """Return a network of the same shape, on the same device, as `seed` initialises it."""
    initial = Transformer(model.config)
    initial.reset_parameters(torch.Generator().manual_seed(seed))
    return initial.to(next(model.parameters()).device).eval()


def final_rows(run: StoredRun) -> list[Row]:
    """Return a row per member of a finished run: settings, final metrics, origin."""
    if run.summary is None:
        raise ValueError(f"{run.path} is not finished: it has no final metrics yet")
    settings = flat_settings(run.config)
    if "scored" in run.summary:  # on more than its config asked for
        instances = scored_instances(run)
        settings["evaluation.splits"] = " ".join(instances)
        settings["evaluation.final_instances"] = min(instances.values())
    origin = {
        "run": run.path.name,
        "population": len(run.members),
        "seconds": run.summary["seconds"],
        **origin_of(run),
    }
    rows = []
    for member, result in zip(run.members, run.summary["members"], strict=True):
        outcome = {
            **result["metrics"],
            "diverged": result["diverged_at"] is not None,
            "diverged_at": result["diverged_at"],
        }
        rows.append({**settings, **member, **outcome, **origin})
    return rows


def scored_instances(run: StoredRun) -> dict[str, int]:
    """Return on how many instances of each split the models of a finished run were scored."""
    if run.summary is None:
        return {}
    asked = run.config["evaluation"]
    return dict.fromkeys(asked["splits"], asked["final_instances"]) | run.summary.get("scored", {})


def origin_of(run: StoredRun) -> Row:
    """Return device, versions and commit of all starts of a run."""
    return {name: _all_values(run.provenance, name) for name in ORIGIN}


def curve_rows(run: StoredRun) -> list[Row]:
    """Return a row per member and logged step, with what was logged there."""
    rows = []
    for record in read_metrics(run.path):
        shared = {name: value for name, value in record.items() if not isinstance(value, list)}
        metrics = {name: value for name, value in record.items() if isinstance(value, list)}
        for i, member in enumerate(run.members):
            own = {name: values[i] for name, values in metrics.items()}
            rows.append({"run": run.path.name, "member": i, **member, **shared, **own})
    return rows


def flat_settings(config: Mapping[str, Any]) -> Row:
    """Return everything in a config tree but its members as one level: {"model.attention": ...}."""
    shared = {name: value for name, value in config.items() if name != "members"}
    return dict(_flattened(shared, ""))


def _flattened(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            # A table's cell holds no list.
            yield prefix + name, " ".join(map(str, value)) if isinstance(value, list) else value


def _all_values(starts: list[dict[str, Any]], name: str) -> str | None:
    """Join what the run's starts say: one resumed on another machine owes its figures to both."""
    values = dict.fromkeys(str(start[name]) for start in starts if start.get(name) is not None)
    return "; ".join(values) or None

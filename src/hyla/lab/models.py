"""The trained models of Table A1 as a folder that one can take: small, and said by its hashes."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyla._files import sha256_of, write_json
from hyla.lab.methods import methods_of
from hyla.lab.registry import load
from hyla.results.conditions import Conditions
from hyla.results.finished import final_checkpoint
from hyla.results.runs import StoredRun, origin_of, read_runs
from hyla.training.identity import method_key
from hyla.training.run.checkpoints.base import Checkpoint
from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.errors import NoRunError

MANIFEST = "manifest.json"
_KEPT = ("config.json", "provenance.json", "metrics.jsonl", "finished.json")
_PARAMETERS = "parameters/"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What was packed."""

    manifest: Path
    runs: list[dict[str, Any]]
    """Of each run: what it is of, its models, commit, and the SHA-256 of its files."""
    missing: list[str]
    """Rows of Table A1 without a finished run: task, attention, feed-forward network."""


def pack_models(root: Path, out: Path, conditions: Conditions) -> Packed:
    """Copy the finished runs of Table A1's rows under `root` to `out`, at half precision.

    What is there opens as any run does; only to continue training, its moments are missing.

    Raises:
        NoRunError: there are none.
    """
    rows = {
        method_key(m.config): _row_name(m.config.to_tree())
        for m in methods_of(load("tableA1"), conditions)
    }
    found = [(run, end) for run in read_runs(root) if run.method in rows and (end := _end(run))]
    if not found:
        raise NoRunError(
            f"{root} has no finished run of Table A1 at {conditions}: train some with `hyla "
            "reproduce tableA1`, or say which scale, share of the steps and precision there are"
        )
    packed = [_pack(run, end, out / run.path.name) for run, end in found]
    manifest = out / MANIFEST
    write_json(manifest, {"conditions": conditions.label, "runs": packed})
    there = {run.method for run, _ in found}
    return Packed(
        manifest=manifest,
        runs=packed,
        missing=[name for method, name in rows.items() if method not in there],
    )


def _row_name(config: dict[str, Any]) -> str:
    experts = " with experts" if config["model"]["feed_forward"] == "moe" else ""
    return f"{config['task_name']} {config['model']['attention']}{experts}"


def _end(run: StoredRun) -> Checkpoint | None:
    return final_checkpoint(run) if run.summary is not None else None


def _pack(run: StoredRun, end: Checkpoint, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        if (run.path / name).exists():
            shutil.copyfile(run.path / name, folder / name)
    assert end.tensors is not None
    models = {n: _half(tensor) for n, tensor in end.tensors.items() if n.startswith(_PARAMETERS)}
    checkpoints = FileCheckpoints(folder, run.fingerprint)
    there = checkpoints.latest()
    # The same models in another file would have another hash: what is there stays.
    if there is None or there.step != end.step or not _same(there.tensors, models):
        checkpoints.save(end.step, models, end.meta)
    return {
        "run": run.path.name,
        "row": _row_name(run.config),
        "members": run.members,
        "git_commit": origin_of(run)["git_commit"],
        "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
    }


def _same(some: Mapping[str, Tensor] | None, others: Mapping[str, Tensor]) -> bool:
    if some is None or some.keys() != others.keys():
        return False
    return all(torch.equal(some[name], tensor) for name, tensor in others.items())


def _half(tensor: Tensor) -> Tensor:
    """Return it in half the bytes, unless it has numbers that are too large for that."""
    half = tensor.half()
    return half if torch.equal(half.isfinite(), tensor.isfinite()) else tensor

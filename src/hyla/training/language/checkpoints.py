"""Checkpoints of a run on any number of ranks, by torch.distributed.checkpoint.

A checkpoint is a directory, ``checkpoint-000123``: every rank's part as safetensors, and
``state.json`` with the step, the run's fingerprint, the caller's ``meta`` and the SHA-256 of every
file. It is written under another name and renamed when it is whole, so a kill at any moment leaves
the checkpoint before it. Tensors are stored by name and position, not by rank: a run continues on
another number of ranks. Nothing here unpickles.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)

from hyla._files import sync_directory, write_atomically
from hyla.tasks.language.corpora import sha256_of
from hyla.training.checkpoint import JSON, CheckpointError
from hyla.training.language.ranks import Ranks

_LAYOUT = "language-1"
_STATE = "state.json"
_NAME = re.compile(r"checkpoint-(\d{6,})")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What `find_latest` found; `load` reads its tensors."""

    path: Path
    step: int
    meta: dict[str, Any]


class _UnusableError(Exception):
    """Why a directory is not a checkpoint of this run."""


def save(
    directory: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, JSON],
    *,
    fingerprint: str,
    ranks: Ranks,
) -> Path:
    """Write the checkpoint of `step`, all ranks together; keep one before it to fall back on."""
    path = directory / f"checkpoint-{step:06d}"
    unfinished = directory / f".{path.name}.tmp"

    def begin() -> None:
        for stale in directory.glob(".checkpoint-*.tmp"):
            shutil.rmtree(stale)
        unfinished.mkdir()

    def finish() -> None:
        state = {
            "hyla_checkpoint": _LAYOUT,
            "step": step,
            "fingerprint": fingerprint,
            "meta": dict(meta),
            "files": {file.name: sha256_of(file) for file in sorted(unfinished.iterdir())},
        }
        for file in unfinished.iterdir():
            _sync(file)
        write_atomically(unfinished / _STATE, json.dumps(state, indent=1).encode())
        if path.exists():
            if _is_intact(path, fingerprint):  # of the same step: the same, and safe where it is
                shutil.rmtree(unfinished)
                return
            path.rename(directory / f".{path.name}.damaged.tmp")
        unfinished.rename(path)
        sync_directory(directory)
        for superseded in (
            *_superseded(directory, step, fingerprint),
            *directory.glob(".checkpoint-*.tmp"),
        ):
            shutil.rmtree(superseded)

    try:
        ranks.on_first(begin)
        with _quiet(), _plain_errors():
            state_dict_saver.save(
                dict(tensors),
                storage_writer=HuggingFaceStorageWriter(str(unfinished), save_distributed=True),
                no_dist=ranks.size == 1,
            )
        ranks.on_first(finish)
    except OSError as error:
        if ranks.first:
            shutil.rmtree(unfinished, ignore_errors=True)  # it may be what fills the disk
        raise CheckpointError(
            f"Cannot write the checkpoint {path}: {error}. Earlier checkpoints are intact: mend "
            "the cause and run the same command again to continue."
        ) from error
    return path


def find_latest(
    directory: Path, fingerprint: str, warn: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest intact checkpoint of the run with this `fingerprint`, if there is one."""
    unusable = 0
    for path in _newest_first(directory):
        try:
            checkpoint = _check(path, fingerprint)
        except _UnusableError as reason:
            unusable += 1
            warn(f"{path} is not used: {reason}. It is left in place.")
            continue
        if unusable:
            warn(f"Falling back to the checkpoint of step {checkpoint.step}, {path.name}.")
        return checkpoint
    return None


def newest_step(directory: Path) -> int | None:
    """Return the step that the newest checkpoint's name says; None if there is none."""
    newest = _newest_first(directory)
    return _step_of(newest[0]) if newest else None


def load(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], *, distributed: bool) -> None:
    """Read the checkpoint's tensors into those of the same names, whatever ranks hold of them."""
    with _quiet(), _plain_errors():
        state_dict_loader.load(
            dict(tensors),
            storage_reader=HuggingFaceStorageReader(str(checkpoint.path)),
            no_dist=not distributed,
        )


def _superseded(directory: Path, step: int, fingerprint: str) -> list[Path]:
    """Return the checkpoints before `step` but the last intact one, to fall back on.

    Those of later steps are left alone: a run that resumed before them found them bad.
    """
    older = [path for path in _newest_first(directory) if _step_of(path) < step]
    fallback = next((path for path in older if _is_intact(path, fingerprint)), None)
    return [path for path in older if path != fallback]


def _is_intact(path: Path, fingerprint: str) -> bool:
    try:
        _check(path, fingerprint)
    except _UnusableError:
        return False
    return True


def _check(path: Path, fingerprint: str) -> Checkpoint:
    try:
        state = json.loads((path / _STATE).read_bytes())
        hashes, step, meta = state["files"], state["step"], state["meta"]
        if state["hyla_checkpoint"] != _LAYOUT:
            raise _UnusableError("not a checkpoint that this version of hyla wrote")
        if state["fingerprint"] != fingerprint:
            raise _UnusableError("it belongs to another run")
        for name, expected in hashes.items():
            if sha256_of(path / name) != expected:
                raise _UnusableError(f"damaged: the SHA-256 of {name} does not match")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _UnusableError(f"incomplete or damaged ({error})") from error
    return Checkpoint(path=path, step=step, meta=meta)


def _newest_first(directory: Path) -> list[Path]:
    found = [path for path in directory.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise what went wrong, on the first rank that failed, and not torch's report of it.

    The report is no Exception, so nobody would answer it.
    """
    try:
        yield
    except CheckpointException as report:
        error, _ = next(iter(report.failures.values()))
        raise error from report


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out that a single process has no process group: it needs none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield

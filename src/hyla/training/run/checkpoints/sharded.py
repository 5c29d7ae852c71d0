"""A checkpoint as a directory, ``checkpoint-000123``, by torch.distributed.checkpoint.

It holds every rank's part as safetensors, and ``state.json`` with the step, the run's fingerprint,
its ``meta`` and the SHA-256 of every file. It is written under another name and renamed when it is
whole. Tensors are stored by name and position, not by rank: a run continues on another number of
ranks.
"""

import json
import os
import shutil
import warnings
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from hyla._files import sha256_of, sync_directory, write_atomically
from hyla.training.run.checkpoints.base import Checkpoint, Checkpoints, UnusableError

_VERSION = "language-1"
_STATE = "state.json"


class ShardedCheckpoints(Checkpoints):
    """Checkpoints that all ranks write and read together, or one process alone."""

    suffix = ""
    replaces = False  # a directory cannot be exchanged for another in one move

    def _write(
        self, path: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
    ) -> None:
        unfinished = path.with_name(f".{path.name}.tmp")

        def finish() -> None:
            files = sorted(unfinished.iterdir())
            state = {
                "hyla_checkpoint": _VERSION,
                "step": step,
                "fingerprint": self.fingerprint,
                "meta": dict(meta),
                "files": {file.name: sha256_of(file) for file in files},
            }
            for file in files:
                _sync(file)
            write_atomically(unfinished / _STATE, json.dumps(state, indent=1).encode())
            if path.exists():
                path.rename(path.with_name(f".{path.name}.replaced.tmp"))
            unfinished.rename(path)
            sync_directory(path.parent)

        try:
            self.ranks.on_first(unfinished.mkdir)
            with _plain_errors():
                state_dict_saver.save(
                    dict(tensors),
                    storage_writer=HuggingFaceStorageWriter(str(unfinished), save_distributed=True),
                    no_dist=self.ranks.size == 1,
                )
            self.ranks.on_first(finish)
        except OSError:
            if self.ranks.first:
                shutil.rmtree(unfinished, ignore_errors=True)  # it may be what fills the disk
            raise

    def _check(self, path: Path) -> Checkpoint:
        try:
            state = json.loads((path / _STATE).read_bytes())
            hashes, step, meta = state["files"], state["step"], state["meta"]
            if state["hyla_checkpoint"] != _VERSION:
                raise UnusableError(
                    "not a checkpoint that this version of hyla wrote", foreign=True
                )
            self._check_origin(path, step, state["fingerprint"])
            for name, expected in hashes.items():
                if sha256_of(path / name) != expected:
                    raise UnusableError(f"damaged: the SHA-256 of {name} does not match")
        except (OSError, ValueError, LookupError, TypeError) as error:
            reason = f"incomplete or damaged ({error})"
            raise UnusableError(reason, foreign=path.is_file()) from error
        return Checkpoint(path=path, step=step, meta=meta)

    def _outline(self, checkpoint: Checkpoint) -> Mapping[str, Tensor]:
        stored = HuggingFaceStorageReader(str(checkpoint.path)).read_metadata().state_dict_metadata
        return {
            name: torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
            for name, entry in stored.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def _read(self, checkpoint: Checkpoint, into: Mapping[str, Tensor]) -> None:
        with _plain_errors():
            state_dict_loader.load(
                dict(into),
                storage_reader=HuggingFaceStorageReader(str(checkpoint.path)),
                no_dist=self.ranks.size == 1,
            )

    def _state_on_disk(self, path: Path) -> Hashable:
        files = ((file.name, file.stat()) for file in path.iterdir())
        return frozenset((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in files)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise what went wrong, on the first rank that failed, and not torch's report of it.

    The report is no Exception, so nobody would answer it. Nor does anybody have to hear that a
    single process has no process group: it needs none.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as report:
            error, _ = next(iter(report.failures.values()))
            raise error from report

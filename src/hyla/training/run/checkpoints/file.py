"""A checkpoint as one safetensors file, ``checkpoint-000123.safetensors``.

Its string metadata carry the step, the fingerprint of the run's config, the run's own ``meta`` as
JSON, and a SHA-256 over all of that and every tensor's bytes, so a truncated, bit-flipped or
foreign file is recognised.
"""

import hashlib
import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hyla._files import read_regular, write_atomically
from hyla.training.run.checkpoints.base import Checkpoint, Checkpoints, UnusableError

_VERSION = "2"


class FileCheckpoints(Checkpoints):
    """Checkpoints that one process writes and reads whole."""

    suffix = ".safetensors"
    replaces = True

    def _write(
        self, path: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
    ) -> None:
        # A copy per tensor: off the GPU, contiguous, and free of shared storage (views of one flat
        # buffer), which safetensors refuses.
        snapshot = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in tensors.items()
        }
        meta_json = json.dumps(meta, sort_keys=True)
        metadata = {
            "hyla_checkpoint": _VERSION,
            "step": str(step),
            "fingerprint": self.fingerprint,
            "meta": meta_json,
            "sha256": _digest(step, self.fingerprint, meta_json, snapshot),
        }
        write_atomically(path, safetensors.torch.save(snapshot, metadata))

    def _check(self, path: Path) -> Checkpoint:
        try:
            # Not safe_open(path): its tensors stay mapped to the file, which may be replaced later.
            content = read_regular(path)
            tensors = safetensors.torch.load(content)
            metadata = _metadata(content)
        except (OSError, safetensors.SafetensorError, ValueError, KeyError) as error:
            reason = f"truncated, damaged or not a safetensors file ({error})"
            raise UnusableError(reason, foreign=path.is_dir()) from error
        if (
            metadata.get("hyla_checkpoint") != _VERSION
            or not {"step", "fingerprint", "meta", "sha256"} <= metadata.keys()
            or not metadata["step"].isdecimal()
        ):
            raise UnusableError("not a checkpoint that this version of hyla wrote", foreign=True)
        step, meta_json = int(metadata["step"]), metadata["meta"]
        self._check_origin(path, step, metadata["fingerprint"])
        if metadata["sha256"] != _digest(step, self.fingerprint, meta_json, tensors):
            raise UnusableError("damaged: its SHA-256 does not match its content")
        return Checkpoint(path=path, step=step, meta=json.loads(meta_json), tensors=tensors)

    def _outline(self, checkpoint: Checkpoint) -> Mapping[str, Tensor]:
        assert checkpoint.tensors is not None
        return checkpoint.tensors

    @torch.no_grad()
    def _read(self, checkpoint: Checkpoint, into: Mapping[str, Tensor]) -> None:
        for name, tensor in into.items():
            tensor.copy_(self._outline(checkpoint)[name])

    def _state_on_disk(self, path: Path) -> Hashable:
        status = path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest(step: int, fingerprint: str, meta_json: str, tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    layout = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([step, fingerprint, meta_json, layout]).encode())
    for name in names:
        # Through uint8 because numpy, which lends the bytes without a copy, has no bfloat16.
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _metadata(content: bytes) -> dict[str, str]:
    """Read the string metadata, which `safetensors.torch.load` drops, from the JSON header."""
    header_length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + header_length]).get("__metadata__", {})

"""Checkpoints that survive a kill at any moment: written beside, synced, renamed, verified on load.

A checkpoint is one safetensors file, ``checkpoint-000123.safetensors``. Its string metadata carry
the step, the fingerprint of the run's config, the caller's own ``meta`` as JSON, and a SHA-256
over all of that and every tensor's bytes, so a truncated, bit-flipped or foreign file is
recognised. Nothing here unpickles.
"""

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hyla._files import read_regular, write_atomically

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

_KEPT = 2  # the newest and one to fall back on
_LAYOUT = "2"
_NAME = re.compile(r"checkpoint-(\d{6,})\.safetensors")
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}

# Files this process wrote or read whole, by (device, inode, size, mtime): a save wants to know
# that the older checkpoint it keeps is good, and should not pay for hashing it again each time.
_known_good: set[tuple[int, int, int, int]] = set()


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; the ones already there are untouched."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What `save` was given, read back and verified; the tensors are on the CPU."""

    path: Path
    step: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def newest_step(directory: Path) -> int | None:
    """Return the step that the newest checkpoint's name says; None if there is none."""
    names = (_NAME.fullmatch(path.name) for path in directory.glob("checkpoint-*.safetensors"))
    return max((int(name[1]) for name in names if name), default=None)


class _UnusableError(Exception):
    """Why a file is not a checkpoint of this run."""


def save(
    directory: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, JSON],
    *,
    fingerprint: str,
) -> Path:
    """Write the checkpoint of `step` and drop all but the last two good ones.

    The caller holds the lock of the run (see `RunDirectory`): temporary files found in the
    directory belong to processes that were killed, and are removed. Damaged or foreign
    checkpoints are never removed; one that has the name now needed is renamed.

    Raises:
        CheckpointError: the file could not be written, for example because the disk is full.
    """
    # A copy per tensor: off the GPU, contiguous, and free of shared storage (views of one flat
    # buffer), which safetensors refuses.
    snapshot = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    meta_json = json.dumps(meta, sort_keys=True)
    metadata = {
        "hyla_checkpoint": _LAYOUT,
        "step": str(step),
        "fingerprint": fingerprint,
        "meta": meta_json,
        "sha256": _digest(step, fingerprint, meta_json, snapshot),
    }
    content = safetensors.torch.save(snapshot, metadata)

    path = directory / f"checkpoint-{step:06d}.safetensors"
    try:
        # Before writing, not after: a half-written file may be what fills the disk.
        _remove_stale_temporaries(directory)
        if path.exists() and not _is_good(path, fingerprint):
            _set_aside(path)
        write_atomically(path, content)
    except OSError as error:
        raise CheckpointError(_describe_failure(path, len(content), error)) from error
    _known_good.add(_identity(path))
    _remove_superseded(directory, path, fingerprint)
    return path


def load_latest(
    directory: Path, fingerprint: str, warn: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest intact checkpoint of the run with this `fingerprint`, if there is one.

    Each newer file that cannot be used is reported through `warn` and left where it is.
    """
    unusable = 0
    for path in _newest_first(directory):
        try:
            checkpoint = _load(path, fingerprint)
        except _UnusableError as reason:
            unusable += 1
            warn(f"{path} is not used: {reason}. It is left in place.")
            continue
        if unusable:
            warn(f"Falling back to the checkpoint of step {checkpoint.step}, {path.name}.")
        return checkpoint
    if unusable:
        warn(f"No usable checkpoint in {directory}: there is nothing to resume from.")
    return None


def _digest(step: int, fingerprint: str, meta_json: str, tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    layout = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([step, fingerprint, meta_json, layout]).encode())
    for name in names:
        # Through uint8 because numpy, which lends the bytes without a copy, has no bfloat16.
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load(path: Path, fingerprint: str) -> Checkpoint:
    try:
        # Not safe_open(path): its tensors stay mapped to the file, which may be replaced later.
        content = read_regular(path)
        tensors = safetensors.torch.load(content)
        metadata = _metadata(content)
    except (OSError, safetensors.SafetensorError, ValueError, KeyError) as error:
        raise _UnusableError(f"truncated, damaged or not a safetensors file ({error})") from error
    _check_origin(path, metadata, fingerprint)
    step, meta_json = int(metadata["step"]), metadata["meta"]
    if metadata["sha256"] != _digest(step, fingerprint, meta_json, tensors):
        raise _UnusableError("damaged: its SHA-256 does not match its content")
    _known_good.add(_identity(path))
    return Checkpoint(path=path, step=step, tensors=tensors, meta=json.loads(meta_json))


def _metadata(content: bytes) -> dict[str, str]:
    """Read the string metadata, which `safetensors.torch.load` drops, from the JSON header."""
    header_length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + header_length]).get("__metadata__", {})


def _check_origin(path: Path, metadata: Mapping[str, str], fingerprint: str) -> None:
    if metadata.get("hyla_checkpoint") != _LAYOUT or not (
        {"step", "fingerprint", "meta", "sha256"} <= metadata.keys()
    ):
        raise _UnusableError("not a checkpoint that this version of hyla wrote")
    if metadata["fingerprint"] != fingerprint:
        raise _UnusableError(
            f"it belongs to another run (config {metadata['fingerprint'][:12]}, "
            f"this run's is {fingerprint[:12]})"
        )
    if path.name != f"checkpoint-{metadata['step'].zfill(6)}.safetensors":
        raise _UnusableError(f"its name does not match its content, step {metadata['step']}")


def _is_good(path: Path, fingerprint: str) -> bool:
    if _identity(path) in _known_good:
        return True
    try:
        _load(path, fingerprint)
    except _UnusableError:
        return False
    return True


def _identity(path: Path) -> tuple[int, int, int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _newest_first(directory: Path) -> Iterator[Path]:
    """Yield files named like checkpoints by falling step, then any whose name has no step."""

    def step_in_name(path: Path) -> int:
        match = _NAME.fullmatch(path.name)
        return int(match[1]) if match else -1

    yield from sorted(directory.glob("checkpoint-*.safetensors"), key=step_in_name, reverse=True)


def _remove_stale_temporaries(directory: Path) -> None:
    for temporary in directory.glob(".*.tmp-*"):
        temporary.unlink(missing_ok=True)


def _remove_superseded(directory: Path, newest: Path, fingerprint: str) -> None:
    """Delete this run's good checkpoints older than the last two; others are not ours to delete.

    Checkpoints of later steps are left alone too: a run that resumed past them found them bad.
    """
    candidates = list(_newest_first(directory))
    older = candidates[candidates.index(newest) + 1 :]
    good = [path for path in older if _is_good(path, fingerprint)]
    for path in good[_KEPT - 1 :]:
        path.unlink(missing_ok=True)


def _set_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.set-aside-{number}")).exists():
        number += 1
    path.rename(aside)


def _describe_failure(path: Path, size: int, error: OSError) -> str:
    if error.errno not in DISK_FULL:
        return f"Cannot write the checkpoint {path}: {error}. Earlier checkpoints are intact."
    return (
        f"Disk full: the checkpoint {path.name} needs {size / 1e6:.1f} MB in {path.parent}, "
        f"{room_left(path.parent, error)}. "
        "Earlier checkpoints are intact: make room and run the same command again to continue."
    )


def room_left(directory: Path, error: OSError) -> str:
    """Say how much room there is where `error`, one of `DISK_FULL`, occurred."""
    if error.errno == errno.EDQUOT:
        return "your disk quota is used up"
    return f"{shutil.disk_usage(directory).free / 1e6:.1f} MB are free"

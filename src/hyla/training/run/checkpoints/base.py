"""Which checkpoints of a run are used, kept, passed over and removed, however they lie on disk.

- The newest intact one is resumed from, and the last intact one before it is kept to fall back on.
- A damaged one is reported and passed over. It is left in place until an intact checkpoint of its
  step or a later one is saved, which makes it useless; then it is removed, and that is said.
- One of another run or another version is not ours to delete. If its name is needed, it is renamed.

Nothing here unpickles.
"""

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hyla.training.run.errors import unsaved
from hyla.training.run.ranks import Ranks

_NAME = re.compile(r"checkpoint-(\d{6,})(\.safetensors)?")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was found intact."""

    path: Path
    step: int
    meta: dict[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    """What a single file holds, on the CPU; ranks read their parts of a directory by themselves."""


class UnusableError(Exception):
    """Why something is not a checkpoint of this run."""

    def __init__(self, reason: str, *, foreign: bool = False):
        super().__init__(reason)
        self.foreign = foreign
        """Whether it is somebody else's, and not one of this run's that was damaged."""


def newest_step(directory: Path) -> int | None:
    """Return the step that the newest checkpoint's name says; None if there is none."""
    steps = (step_of(path) for path in directory.glob("checkpoint-*"))
    return max((step for step in steps if step is not None), default=None)


def step_of(path: Path) -> int | None:
    """Return the step that a checkpoint's name says; None if it is no checkpoint's name."""
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else None


class Checkpoints(ABC):
    """The checkpoints in a run's directory. Only who holds that (see `RunDirectory`) may save."""

    suffix: ClassVar[str]
    """Of their names."""
    replaces: ClassVar[bool]
    """Whether writing over an intact one leaves, at any moment, either the old or the new."""

    def __init__(
        self,
        directory: Path,
        fingerprint: str,
        *,
        ranks: Ranks | None = None,
        say: Callable[[str], None] = lambda message: None,
    ):
        """Of the run whose config has this `fingerprint`; all `ranks` call every method."""
        self.directory, self.fingerprint = directory, fingerprint
        self.ranks = Ranks.alone("cpu") if ranks is None else ranks
        self._say = say
        # Those that this process wrote or checked: a save wants to know that the older checkpoint
        # it keeps is good, and should not pay for hashing it again each time.
        self._known_good: set[Hashable] = set()

    # --- how they lie on disk ---------------------------------------------------------------------

    @abstractmethod
    def _write(
        self, path: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
    ) -> None:
        """Put a checkpoint at `path`, whole or, with an OSError, not at all."""

    @abstractmethod
    def _check(self, path: Path) -> Checkpoint:
        """Return the checkpoint at `path`; an UnusableError if it is damaged or not the run's."""

    @abstractmethod
    def _outline(self, checkpoint: Checkpoint) -> Mapping[str, Tensor]:
        """Return tensors of the names, shapes and dtypes of those it holds."""

    @abstractmethod
    def _read(self, checkpoint: Checkpoint, into: Mapping[str, Tensor]) -> None:
        """Copy its tensors into those of the same names and shapes."""

    @abstractmethod
    def _state_on_disk(self, path: Path) -> Hashable:
        """Return what changes when the files at `path` do, without reading them."""

    # --- reading ----------------------------------------------------------------------------------

    def latest(self) -> Checkpoint | None:
        """Return the newest intact one, if there is one; each newer one that is not is reported."""
        return self.ranks.on_first(self._find)

    def _find(self) -> Checkpoint | None:
        unusable = 0
        for path in self._newest_first():
            try:
                checkpoint = self._check(path)
            except UnusableError as reason:
                unusable += 1
                self._say(f"{path} is not used: {reason}. It is left in place.")
                continue
            if unusable:
                self._say(f"Falling back to the checkpoint of step {checkpoint.step}, {path.name}.")
            self._known_good.add(self._identity(path))
            return checkpoint
        if unusable:
            self._say(f"No usable checkpoint in {self.directory}: there is nothing to resume from.")
        return None

    def read(self, checkpoint: Checkpoint, into: Mapping[str, Tensor]) -> None:
        """Copy all of its tensors into those of the same names; a ValueError if those differ."""
        stored = self._outline(checkpoint)
        if {n: t.shape for n, t in stored.items()} != {n: t.shape for n, t in into.items()}:
            raise ValueError("the state belongs to models of another shape, or to another version")
        self._read(checkpoint, into)

    def parameters(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        """Return the parameters in it by the model's names, on the CPU."""
        kind = "parameters/"
        stored = {
            name: torch.empty_like(tensor, device="cpu")
            for name, tensor in self._outline(checkpoint).items()
            if name.startswith(kind)
        }
        self._read(checkpoint, stored)
        return {name.removeprefix(kind): tensor for name, tensor in stored.items()}

    # --- saving -----------------------------------------------------------------------------------

    def save(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
        """Write the checkpoint of `step` and drop what it makes useless.

        Raises:
            CheckpointError: it could not be written, for example because the disk is full.
        """
        path = self.directory / self._name(step)
        try:
            if self.ranks.on_first(lambda: self._make_way(path)):
                self._write(path, step, tensors, meta)
                self.ranks.on_first(lambda: self._clear_up_after(path))
        except OSError as error:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            earlier = newest_step(self.directory) is not None
            raise unsaved(path, size, error, earlier=earlier) from error
        return path

    def _make_way(self, path: Path) -> bool:
        """Return whether there is something to write, and nothing of others to write over."""
        # Before writing, not after: a half-written file may be what fills the disk.
        self._remove_temporaries()
        if path.exists():
            reason = self._why_unusable(path)
            if reason is None:  # of the same step: the same, and safe where it is
                return self.replaces
            if reason.foreign:
                _set_aside(path)
            else:
                self._say(f"{path} is damaged, and is replaced.")
        return True

    def _clear_up_after(self, saved: Path) -> None:
        """Remove older checkpoints of this run but the last intact one, to fall back on.

        Those of later steps are left alone: a run that resumed before them found them bad.
        """
        self._known_good.add(self._identity(saved))
        candidates, fallback = self._newest_first(), None
        for path in candidates[candidates.index(saved) + 1 :]:
            reason = self._why_unusable(path)
            if reason is None and fallback is None:
                fallback = path
            elif reason is None:
                _remove(path)
            elif not reason.foreign:
                self._say(f"{path} is damaged, and is removed: {saved.name} is newer and intact.")
                _remove(path)
        self._remove_temporaries()

    def _why_unusable(self, path: Path) -> UnusableError | None:
        try:
            if self._identity(path) not in self._known_good:
                self._check(path)
                self._known_good.add(self._identity(path))
        except UnusableError as reason:
            return reason
        except OSError as error:
            return UnusableError(str(error), foreign=True)
        return None

    def _identity(self, path: Path) -> Hashable:
        return path.name, self._state_on_disk(path)  # what was renamed is to be checked again

    def _remove_temporaries(self) -> None:
        """Remove what processes that were killed have left."""
        for pattern in (".*.tmp", ".*.tmp-*"):
            for temporary in self.directory.glob(pattern):
                _remove(temporary)

    # --- names ------------------------------------------------------------------------------------

    def _name(self, step: int) -> str:
        return f"checkpoint-{step:06d}{self.suffix}"

    def _newest_first(self) -> list[Path]:
        names = ((path, _NAME.fullmatch(path.name)) for path in self.directory.glob("checkpoint-*"))
        steps = {path: int(n[1]) for path, n in names if n and (n[2] or "") == self.suffix}
        return sorted(steps, key=lambda path: steps[path], reverse=True)

    def _check_origin(self, path: Path, step: int, fingerprint: str) -> None:
        """Raise an UnusableError unless the fingerprint is the run's and the name the step's."""
        if fingerprint != self.fingerprint:
            both = f"config {fingerprint[:12]}, this run's is {self.fingerprint[:12]}"
            raise UnusableError(f"it belongs to another run ({both})", foreign=True)
        if path.name != self._name(step):
            raise UnusableError(f"its name does not match its content, step {step}", foreign=True)


def _set_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.set-aside-{number}")).exists():
        number += 1
    path.rename(aside)


def _remove(path: Path) -> None:
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith("."):  # else a kill would leave half of it, under its name
        path = path.rename(path.with_name(f".{path.name}.removed.tmp"))
    shutil.rmtree(path)

"""Trained models from the directory of their run, whatever was trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hyla.nn import Transformer
from hyla.tasks.language import Tokenizer
from hyla.tasks.language.shards import TOKENIZER
from hyla.training.config import TrainConfig, config_from_tree
from hyla.training.devices import resolve_device
from hyla.training.identity import fingerprint
from hyla.training.run.checkpoints.base import Checkpoints
from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.errors import CheckpointError, NoMemberError, RunDirectoryError
from hyla.training.run.reading import read_config

if TYPE_CHECKING:
    from hyla.training.language.config import LanguageConfig


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """The models of a run, as its newest checkpoint has them."""

    path: Path
    config: "TrainConfig | LanguageConfig"
    step: int
    tokenizer: Tokenizer | None
    """Of a language model."""
    parameters: dict[str, Tensor]
    """By the model's names, on the CPU; of a population with a first axis for its members."""

    def model(self, member: int = 0, *, device: torch.device | str = "cpu") -> Transformer:
        """Return one of the models, ready to be called."""
        count = len(self.config.members)
        if not 0 <= member < count:
            raise NoMemberError(
                f"{self.path} has {count} models, counted from 0: there is no member {member}"
            )
        model = Transformer(self.config.model)
        stacked = isinstance(self.config, TrainConfig)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                stored = self.parameters[name]
                parameter.copy_(stored[member] if stacked else stored)
        return model.to(resolve_device(device)).eval()


def load_run(path: Path | str) -> TrainedRun:
    """Open any run directory, finished or not. A language model needs SentencePiece.

    Raises:
        RunDirectoryError: there is no run.
        CheckpointError: it has no usable checkpoint yet.
    """
    path = Path(path)
    tree = read_config(path)
    kind, tokenizer = FileCheckpoints, None
    try:
        if tree.get("task_name") == "language":
            # Here, because that package offers `load_language_model` as its own.
            from hyla.training.language.config import language_config_of_run
            from hyla.training.run.checkpoints.sharded import ShardedCheckpoints

            kind, tokenizer = ShardedCheckpoints, Tokenizer.load(path / TOKENIZER)
            config = language_config_of_run(tree, tokenizer.vocab_size)
        else:
            config = config_from_tree(tree)
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be loaded: {error}") from error
    step, parameters = newest_parameters(path, tree, kind)
    return TrainedRun(
        path=path, config=config, step=step, tokenizer=tokenizer, parameters=parameters
    )


def newest_parameters(
    path: Path, tree: Mapping[str, Any], kind: type[Checkpoints]
) -> tuple[int, dict[str, Tensor]]:
    """Return the step of a run's newest checkpoint, and its parameters on the CPU."""
    complaints: list[str] = []
    checkpoints = kind(path, fingerprint(tree), say=complaints.append)
    found = checkpoints.latest()
    if found is None:
        reasons = complaints or ["train it with the command that began it"]
        raise CheckpointError(f"{path} has no checkpoint to load: {' '.join(reasons)}")
    return found.step, checkpoints.parameters(found)


class LoadedModel(NamedTuple):
    """A model, ready to be called, and what its run says about it."""

    transformer: Transformer
    tokenizer: Tokenizer
    step: int


def load_language_model(run: Path | str, device: torch.device | str = "auto") -> LoadedModel:
    """Load the newest checkpoint of a run, finished or not. Needs SentencePiece."""
    task = task_of(run)
    if task != "language":
        raise RunDirectoryError(f"{run} is a run of {task}, not of language")
    loaded = load_run(run)
    assert loaded.tokenizer is not None
    return LoadedModel(loaded.model(device=device), loaded.tokenizer, loaded.step)


def task_of(path: Path | str) -> str | None:
    """Return the name of the task that a run directory is for, from its config alone."""
    return read_config(Path(path)).get("task_name")

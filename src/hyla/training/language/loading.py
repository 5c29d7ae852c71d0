"""A trained language model from its run directory."""

from pathlib import Path
from typing import NamedTuple

import torch

from hyla.nn import Transformer
from hyla.tasks.language import Tokenizer
from hyla.training.loading import load_run, task_of
from hyla.training.run.errors import RunDirectoryError


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

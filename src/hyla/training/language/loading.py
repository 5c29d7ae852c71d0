"""A trained language model from its run directory."""

import json
from pathlib import Path
from typing import NamedTuple

import torch

from hyla.nn import Transformer, TransformerConfig
from hyla.tasks.language import Tokenizer
from hyla.tasks.language.shards import TOKENIZER
from hyla.training.identity import fingerprint
from hyla.training.language import checkpoints
from hyla.training.loop import resolve_device
from hyla.training.run_directory import RunDirectoryError


class LoadedModel(NamedTuple):
    """A model, ready to be called, and what its run says about it."""

    transformer: Transformer
    tokenizer: Tokenizer
    step: int


def load_language_model(run: Path | str, device: torch.device | str = "auto") -> LoadedModel:
    """Load the newest checkpoint of a run, finished or not. Needs SentencePiece."""
    run = Path(run)
    if not (run / "config.json").is_file():
        reason = "it holds no config.json" if run.exists() else "it does not exist"
        raise RunDirectoryError(f"{run} is not the directory of a language run: {reason}")
    try:
        tree = json.loads((run / "config.json").read_bytes())
        if tree.get("task_name") != "language":
            raise RunDirectoryError(f"{run} is a run of {tree.get('task_name')}, not of language")
        tokenizer = Tokenizer.load(run / TOKENIZER)
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{run} is not the directory of a language run: {error}") from error
    found = checkpoints.find_latest(run, fingerprint(tree), warn=lambda message: None)
    if found is None:
        raise RunDirectoryError(f"{run} has no checkpoint yet; train it for longer")
    vocab_size = tokenizer.vocab_size
    transformer = Transformer(
        TransformerConfig(input_dim=vocab_size, output_dim=vocab_size, **tree["model"])
    )
    parameters = {f"parameters/{name}": p.detach() for name, p in transformer.named_parameters()}
    checkpoints.load(found, parameters, distributed=False)
    transformer.eval()
    return LoadedModel(transformer.to(resolve_device(device)), tokenizer, found.step)

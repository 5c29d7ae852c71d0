"""The models that `hyla sraven` has answer: those of runs, and those that come with hyla."""

import torch

from hyla.explorer.packed import read_description, read_weights, shipped_models
from hyla.nn import Transformer
from hyla.results import load_model
from hyla.training import TrainConfig


def load_answerer(
    who: str, member: int, device: torch.device
) -> tuple[Transformer, TrainConfig, int]:
    """A model by its run directory, or by its name; with its config and its seed."""
    shipped = {stem.name: stem for stem in shipped_models()}
    if who in shipped:
        _, config = read_description(shipped[who])
        model, member = read_weights(shipped[who], config).to(device), 0
    else:
        model, config = load_model(who, member, device=device)
    return model, config, config.members[member].seed

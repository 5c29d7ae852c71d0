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
    shipped = shipped_models()
    if who in shipped:
        refuse_member(who, member)
        _, config = read_description(shipped[who])
        model = read_weights(shipped[who], config).to(device)
    else:
        model, config = load_model(who, member, device=device)
    return model, config, config.members[member].seed


def refuse_member(who: str, member: int) -> None:
    """Raise a ValueError where another model is asked for than the one there is."""
    if member != 0:
        raise ValueError(f"{who} is a single model: --member {member} is for runs of several")

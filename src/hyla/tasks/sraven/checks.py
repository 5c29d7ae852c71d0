"""Whether a tensor is a batch of SRAVEN grids at all."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from hyla.tasks.sraven.config import SravenConfig


def check_panels(panels: Int[Tensor, "b rows columns m"], config: SravenConfig) -> None:
    """Raise a ValueError if these are not grids of `config`; the query panels do not matter."""
    M, K, G = config.panel_size, config.num_values, config.grid_size
    if panels.ndim != 4 or tuple(panels.shape[1:]) != (G, G, M):
        raise ValueError(
            f"panels must have the shape [batch, {G}, {G}, {M}] (rows, columns, features), got "
            f"{list(panels.shape)}"
        )
    if panels.dtype.is_floating_point or panels.dtype == torch.bool:
        raise ValueError(f"panels must hold integers, got {panels.dtype}")
    context = panels.flatten(1, 2)[:, :-1]
    outside = (context < 0) | (context >= K)
    if bool(outside.any()):
        instance, panel, feature = outside.nonzero()[0].tolist()
        raise ValueError(
            f"instance {instance} shows {int(context[instance, panel, feature])} at position "
            f"{feature} of the panel in row {panel // G}, column {panel % G}; values must lie in "
            f"[0, {K})"
        )

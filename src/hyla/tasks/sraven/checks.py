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
    wrong = _first_outside(panels.flatten(1, 2)[:, :-1], config)
    if wrong is not None:
        raise ValueError(f"{wrong}; values must lie in [0, {K})")


def check_whole_grids(panels: Int[Tensor, "b rows columns m"], config: SravenConfig) -> None:
    """Raise a ValueError if these are not grids of `config`, or their query panels are hidden."""
    check_panels(panels, config)
    wrong = _first_outside(panels.flatten(1, 2), config)
    if wrong is not None:
        raise ValueError(
            f"the true query panel is needed here, but {wrong}; fill in the answer, in "
            f"[0, {config.num_values})"
        )


def _first_outside(panels: Int[Tensor, "b panels m"], config: SravenConfig) -> str | None:
    """Which instance shows a value out of range, and where; None if none does."""
    # Types of a few bits may be unable to hold the bound itself.
    values = panels.to(torch.int64)
    outside = (values < 0) | (values >= config.num_values)
    if not bool(outside.any()):
        return None
    instance, panel, feature = outside.nonzero()[0].tolist()
    row, column = divmod(panel, config.grid_size)
    return (
        f"instance {instance} shows {int(values[instance, panel, feature])} at position {feature} "
        f"of the panel in row {row}, column {column}"
    )

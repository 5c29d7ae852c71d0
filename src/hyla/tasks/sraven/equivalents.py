"""Puzzles made of a puzzle: those about its known rows, and those that have the same answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def about_row(
    panels: Int64[Tensor, "b rows columns m"], row: int
) -> Int64[Tensor, "b rows columns m"]:
    """The puzzle whose question is a known row: its last panel is the one asked for.

    The other known rows stand above it, the first of them once more in the place of the row that
    went down, so that the puzzle has its usual size and the real question has no part in it.
    """
    known = panels.shape[1] - 1
    if known < 2:
        raise ValueError("a grid of 2 rows has no other known row to hold one out of")
    if not 0 <= row < known:
        raise ValueError(f"row must be one of the {known} known ones, from 0, got {row}")
    others = [other for other in range(known) if other != row]
    return panels[:, [others[0], *others, row]]


class Shuffled(NamedTuple):
    """The same puzzles in other words."""

    panels: Int64[Tensor, "b rows columns m"]
    positions: Int64[Tensor, "b m"]
    """Where each integer of the query panel stood before."""

    def restored(self, scores: Float[Tensor, "b m k"]) -> Float[Tensor, "b m k"]:
        """Scores of the query panel's values, in the puzzles' own order."""
        index = self.positions.unsqueeze(-1).expand_as(scores)
        return torch.zeros_like(scores).scatter(1, index, scores)


def shuffled(panels: Int64[Tensor, "b rows columns m"], random: torch.Generator) -> Shuffled:
    """Show the features of each column in another order, and the known rows likewise.

    Any order of either is as likely as any other, so the answer stays what it was.
    """
    instances, rows, columns, features = panels.shape
    orders = torch.rand(instances, columns, features, generator=random).argsort(-1)
    above = torch.rand(instances, rows - 1, generator=random).argsort(-1)
    last = torch.full((instances, 1), rows - 1)
    row_orders = torch.cat([above, last], dim=1)[:, :, None, None].to(panels.device)
    orders = orders.to(panels.device)
    panels = panels.gather(1, row_orders.expand_as(panels))
    return Shuffled(panels.gather(-1, orders.unsqueeze(1).expand_as(panels)), orders[:, -1])

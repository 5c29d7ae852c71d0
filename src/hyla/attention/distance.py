"""Biases that depend on nothing but the distance from a query to a key, as T5's do."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class DistanceBias(NamedTuple):
    """A bias for each head and distance, in the place of one for each head, query and key.

    `table` [..., H, Tq + Tk - 1] holds at index i the bias of keys whose index is by i - (Tq - 1)
    larger than that of the query. Its first axes broadcast like those of any bias.
    """

    table: Float[Tensor, "... H distances"]

    def for_pairs(self, num_keys: int) -> Float[Tensor, "... H Tq Tk"]:
        """Return the bias of every pair."""
        last_query = self.table.shape[-1] - num_keys
        keys = torch.arange(num_keys, device=self.table.device)
        queries = torch.arange(last_query, -1, -1, device=self.table.device)
        return self.table[..., keys + queries[:, None]]


def sum_by_distance(pairs: Float[Tensor, "... Tq Tk"]) -> Float[Tensor, "... distances"]:
    """Sum over the pairs of each distance, in the order of `DistanceBias`."""
    queries, keys = pairs.shape[-2:]
    # The last query first, and each row one place further to the right than the one before it.
    rows = F.pad(pairs.flip(-2), (0, queries)).flatten(-2)[..., : queries * (queries + keys - 1)]
    return rows.unflatten(-1, (queries, queries + keys - 1)).sum(-2)

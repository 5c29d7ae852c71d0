"""Positions: T5's relative bias and rotary embeddings."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hyla._errors import check_positive
from hyla.attention import DistanceBias


class T5RelativeBias(nn.Module):
    """A learned bias per head and bucket of relative distance, added to the scores.

    Unidirectional (the authors' choice, although their models attend both ways): distances into
    the past get buckets of their own, every future position shares bucket 0 with the position
    itself. Bidirectional: half of the buckets for each direction, as T5's encoder does. Half of a
    direction's buckets are exact, the rest grow logarithmically up to `max_distance`.
    """

    bucket_of_offset: Tensor

    def __init__(
        self, num_heads: int, *, num_buckets: int, max_distance: int, bidirectional: bool = False
    ):
        super().__init__()
        check_positive(num_heads=num_heads, num_buckets=num_buckets, max_distance=max_distance)
        if bidirectional and num_buckets % 2:
            raise ValueError(f"num_buckets must be even when bidirectional, got {num_buckets}")
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(num_heads, num_buckets))
        self.bidirectional = bidirectional
        buckets = torch.zeros(2 * max_distance + 1, dtype=torch.long)
        self.register_buffer("bucket_of_offset", buckets, persistent=False)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the table: normal with variance 1/buckets."""
        num_buckets, farthest = self.table.shape[1], self.max_distance
        nn.init.normal_(self.table, std=1 / math.sqrt(num_buckets), generator=generator)
        # Here, because a model that was made on the meta device gets its contents here.
        offsets = range(-farthest, farthest + 1)  # key position minus query position
        buckets = [_bucket(x, num_buckets, farthest, self.bidirectional) for x in offsets]
        self.bucket_of_offset.copy_(torch.tensor(buckets, device="cpu"))

    def by_distance(self, num_queries: int, num_keys: int) -> DistanceBias:
        """Return the bias of the last `num_queries` positions towards all `num_keys` keys."""
        offset = torch.arange(1 - num_keys, num_queries, device=self.table.device)
        offset = offset.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return DistanceBias(self.table[:, self.bucket_of_offset[offset]].unsqueeze(0))

    def forward(self, num_queries: int, num_keys: int) -> Float[Tensor, "1 H Tq Tk"]:
        """Return the same for every pair."""
        return self.by_distance(num_queries, num_keys).for_pairs(num_keys)


def _bucket(offset: int, num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Bucket of a key `offset` positions after the query (negative: before it)."""
    first, distance = 0, -offset
    if bidirectional:
        num_buckets //= 2
        first, distance = (num_buckets, offset) if offset > 0 else (0, -offset)
    distance = max(distance, 0)
    exact = max(1, num_buckets // 2)
    if distance < exact:
        return first + distance
    if distance >= max_distance:
        return first + num_buckets - 1
    growth = math.log(distance / exact) / math.log(max_distance / exact)
    # Where the logarithms divide evenly, rounding must not push the distance a bucket down.
    steps = int(growth * (num_buckets - exact) + 1e-9)
    return first + min(num_buckets - 1, exact + steps)


class RotaryTable(NamedTuple):
    """Cosines and sines of the angles of positions 0, 1, ..., computed once [T, 1, D/2]."""

    cos: Tensor
    sin: Tensor

    def rows(self, x: Tensor, start: int) -> "RotaryTable | None":
        """Return the rows for `x` [B, T, H, D]; None if the table has no such rows."""
        stop = start + x.shape[1]
        fits = start >= 0 and stop <= len(self.cos) and 2 * self.cos.shape[-1] == x.shape[-1]
        wide = torch.promote_types(x.dtype, torch.float32)
        if not fits or self.cos.dtype != wide or self.cos.device != x.device:
            return None
        return RotaryTable(self.cos[start:stop], self.sin[start:stop])


def rotary_table(
    start: int,
    length: int,
    size: int,
    *,
    base: float = 10_000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> RotaryTable:
    """Return the angles of `length` positions from `start` on, for heads of `size`."""
    check_rotary(size)
    exponents = torch.arange(0, size, 2, device=device, dtype=dtype) / size
    positions = torch.arange(start, start + length, device=device, dtype=dtype)
    angle = positions[:, None, None] * base**-exponents
    return RotaryTable(angle.cos(), angle.sin())


def check_rotary(head_size: int) -> None:
    """Raise a ValueError for a head that does not divide into pairs."""
    if head_size % 2:
        raise ValueError(f"rotary positions need an even head size, got {head_size}")


def rotary(
    x: Float[Tensor, "B T H D"],
    *,
    start: int = 0,
    base: float = 10_000.0,
    table: RotaryTable | None = None,
) -> Float[Tensor, "B T H D"]:
    """Rotate pairs (i, i + D/2) of queries or keys by position, the first being at `start`.

    A `table` saves computing the angles anew, where it has them.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    angles = None if table is None else table.rows(x, start)
    if angles is None:
        angles = rotary_table(
            start, x.shape[1], x.shape[-1], base=base, dtype=dtype, device=x.device
        )
    cos, sin = angles
    first, second = x.to(dtype).chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)

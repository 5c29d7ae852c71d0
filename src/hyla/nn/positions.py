"""Positions: T5's relative bias and rotary embeddings."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hyla._errors import check_positive


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
        offsets = range(-max_distance, max_distance + 1)  # key position minus query position
        buckets = [_bucket(offset, num_buckets, max_distance, bidirectional) for offset in offsets]
        self.register_buffer("bucket_of_offset", torch.tensor(buckets), persistent=False)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the table: normal with variance 1/buckets."""
        std = 1 / math.sqrt(self.table.shape[1])
        nn.init.normal_(self.table, std=std, generator=generator)

    def forward(self, num_queries: int, num_keys: int) -> Float[Tensor, "1 H Tq Tk"]:
        """Return the bias of the last `num_queries` positions towards all `num_keys` keys."""
        device = self.table.device
        queries = torch.arange(num_keys - num_queries, num_keys, device=device)
        offset = torch.arange(num_keys, device=device) - queries[:, None]
        offset = offset.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return self.table[:, self.bucket_of_offset[offset]].unsqueeze(0)


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


def rotary(
    x: Float[Tensor, "B T H D"], *, start: int = 0, base: float = 10_000.0
) -> Float[Tensor, "B T H D"]:
    """Rotate pairs (i, i + D/2) of queries or keys by position, the first being at `start`."""
    size = x.shape[-1]
    if size % 2:
        raise ValueError(f"rotary positions need an even head size, got {size}")
    dtype = torch.promote_types(x.dtype, torch.float32)
    exponents = torch.arange(0, size, 2, device=x.device, dtype=dtype) / size
    positions = torch.arange(start, start + x.shape[1], device=x.device, dtype=dtype)
    angle = positions[:, None, None] * base**-exponents  # [T, 1, D/2]
    cos, sin = angle.cos(), angle.sin()
    first, second = x.to(dtype).chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)

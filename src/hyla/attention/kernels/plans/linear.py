"""How `large_head_linear.cu` is laid out on the machine: tensor cores, linear value networks."""

import functools
import math

from hyla.attention.kernels.plans.tensor_core import (
    COMMON_SOURCES,
    MAX_HEADS,
    WARPS,
    TensorCorePlan,
)


class LinearPlan(TensorCorePlan):
    """The same tiles, without a hidden layer; both passes over tokens read pairs by head."""

    def sources(self, pass_name: str) -> tuple[str, ...]:
        """Return the files that make the pass."""
        return (*COMMON_SOURCES, "large_head_linear.cu")

    def shared_bytes(self, pass_name: str, heads: int, width: int) -> int:
        """Return the size of `struct Memory` of the pass."""
        all_heads = 8 << (math.ceil(heads / 8) - 1).bit_length()
        token = 2 * all_heads * self.padded(width)
        pairs = 2 * all_heads * (self.queries * (self.keys + 8) + 8)
        sums = 2 * 16 * 32 * self.warps
        if pass_name == "forward":
            return (self.queries + 2 * self.keys) * token + pairs + sums
        own, other = (self.keys, self.queries)[:: 1 if pass_name == "key" else -1]
        return 2 * (own + self.stages * other) * token + 2 * pairs + sums


_TILES = {
    "forward": ((32, 64, 1), (32, 32, 1), (32, 16, 1), (16, 16, 1)),
    "key": ((16, 32, 2), (16, 16, 2), (16, 16, 1)),
    "query": ((32, 16, 2), (16, 16, 2), (16, 16, 1)),
}
_MOST_SUMS = 1024  # H · D of 32 tokens: what a warp's share of their sums takes of its registers


@functools.cache
def plans(pass_name: str, heads: int, width: int) -> tuple[LinearPlan, ...]:
    """List plans, those with the fewest loads first."""
    if heads > MAX_HEADS:
        return ()
    row = heads * LinearPlan.padded(width)
    most = 32 if row <= _MOST_SUMS // (2 if pass_name == "key" else 1) else 16
    return tuple(
        LinearPlan(queries=queries, keys=keys, warps=WARPS, stages=stages)
        for queries, keys, stages in _TILES[pass_name]
        if (keys if pass_name == "key" else queries) <= most
    )

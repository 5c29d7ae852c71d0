"""How `large_head_{forward,backward}.cu` are laid out on the machine: tensor cores, halves."""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch

DTYPES = (torch.bfloat16, torch.float16)
CAPABILITY = (9, 0)  # of the GPU: its matrix instructions came with Hopper

_COMMON = (
    *("phi.cuh", "tensor_core.cuh", "scalars.cuh", "output.cuh", "sequences.cuh"),
    "large_head.cuh",
)
_SOURCES = {
    "forward": (*_COMMON, "large_head_forward.cu"),
    "query": (*_COMMON, "large_head_backward.cu"),
    "key": (*_COMMON, "large_head_backward.cu"),
}
_MAX_HEADS = 32
_MOST_WARPS = 8  # whose threads have 255 registers each fill a multiprocessor


@dataclass(frozen=True, kw_only=True)
class TensorCorePlan:
    """A tile of queries × keys, shared by `warps` warps.

    `blocks` is how many blocks must fit on a multiprocessor, which caps the registers of each.
    """

    contiguous_heads: ClassVar[bool] = False

    queries: int
    keys: int
    warps: int
    blocks: int = 1

    def sources(self, pass_name: str) -> tuple[str, ...]:
        """Return the files that make the pass."""
        return _SOURCES[pass_name]

    def shared_bytes(self, pass_name: str, heads: int, width: int) -> int:
        """Return the size of `struct Memory` of the pass."""
        all_heads = math.ceil(heads / 8) * 8
        head_pitch = width + 8
        token = all_heads * head_pitch + 8
        code_row = self.keys * (all_heads + (8 if all_heads % 16 == 0 else 0)) + 8
        if pass_name == "forward":
            return 2 * ((self.queries + 2 * self.keys) * token + self.queries * code_row)
        queries = 8 if pass_name == "key" else self.queries
        tokens = 2 * (2 * self.keys + 2 * queries) * token
        pairs = 4 * 8 * (self.keys * (all_heads + 4) + 4)
        squares = 4 * self.warps * 8 * self.keys
        hidden = 2 * 8 * (self.keys * head_pitch + 8)
        scores = 2 * heads * 8 * (self.keys + 8)
        inverse = 4 * 8 * self.keys
        return (
            tokens
            + 2 * 8 * code_row
            + inverse
            + max(squares, pairs)
            + pairs
            + max(hidden, scores)
            + hidden
        )


@functools.cache
def plans(pass_name: str, heads: int, width: int) -> tuple[TensorCorePlan, ...]:
    """List plans, the best first, as measured on an H200 (docs/kernel.md).

    Two small blocks on a multiprocessor hide each other's waits better than a large one does.
    """
    if heads > _MAX_HEADS:
        return ()
    slices = width // 16
    if pass_name == "forward":
        groups_per_warp = 2 if heads <= 16 else 1  # of eight queries: their outputs are registers
        candidates = [
            TensorCorePlan(
                queries=queries,
                keys=keys,
                warps=queries // 8 * slices // groups_per_warp,
                blocks=blocks,
            )
            for blocks, keys in ((2, 32), (1, 16))
            for queries in (64, 32, 16, 8)
            if queries >= 8 * groups_per_warp
        ]
    else:
        tasks = 2 * slices
        candidates = [
            TensorCorePlan(queries=8, keys=16, warps=warps, blocks=blocks)
            for warps, blocks in (
                *((tasks // 2, n) for n in (4, 3, 2)),
                (tasks, 1),
                (tasks // 2, 1),
            )
        ]
    return tuple(plan for plan in candidates if plan.blocks * plan.warps <= _MOST_WARPS)

"""How `large_head_{forward,backward,sums}.cu` are laid out on the machine: tensor cores, halves."""

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

DTYPES = (torch.bfloat16, torch.float16)

_FIRST_SOURCES = ("phi.cuh", "softmax.cuh", "tensor_core.cuh")
_LAST_SOURCES = ("cluster.cuh", "scalars.cuh", "output.cuh", "sequences.cuh", "large_head.cuh")
COMMON_SOURCES = (*_FIRST_SOURCES, *_LAST_SOURCES)
HOPPER = (9, 0)
MAX_HEADS = 32
WARPS = 8  # whose threads, with 255 registers each, fill a multiprocessor
_MOST_OF_A_ROW = 1024  # heads times their size that a block holds of a token


@dataclass(frozen=True, kw_only=True)
class TensorCorePlan:
    """A tile of queries × keys, shared by `warps` warps.

    `blocks` is how many blocks must fit on a multiprocessor, which caps the registers of each. The
    backward and the sums have room for `stages` tiles of what they walk over. A tile is shared by a
    cluster of `split` blocks: each has its share of the heads of q and k, and of the size of the
    others. With `warpgroups`, the forward's scores are products of four warps at a time. With
    `bulk`, the key pass adds the gradient of q to memory in whole rows.
    """

    contiguous_heads: ClassVar[bool] = False

    queries: int
    keys: int
    warps: int
    blocks: int = 1
    stages: int = 2
    split: int = 1
    warpgroups: bool = False
    bulk: bool = False

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU has it: products of four warps Hopper alone, the rest later ones too."""
        if self.warpgroups:
            return capability == HOPPER
        return capability >= HOPPER or not (self.split > 1 or self.bulk)

    def sources(self, pass_name: str) -> tuple[str, ...]:
        """Return the files that make the pass."""
        if pass_name == "sums":
            return (*COMMON_SOURCES, "large_head_code.cuh", "large_head_sums.cu")
        if pass_name != "forward":
            return (*COMMON_SOURCES, "large_head_code.cuh", "large_head_backward.cu")
        if self.split > 1:
            return (*COMMON_SOURCES, "large_head_code.cuh", "large_head_forward.cu")
        products = ("warpgroup.cuh",) if self.warpgroups else ()
        who = "warpgroups" if self.warpgroups else "warps"
        code = ("large_head_forward_code.cuh", f"large_head_forward_{who}.cuh")
        return (*_FIRST_SOURCES, *products, *_LAST_SOURCES, *code, "large_head_forward.cu")

    @staticmethod
    def padded(width: int) -> int:
        """Return the size that heads are padded to."""
        return max(16, 1 << (width - 1).bit_length())

    def shared_bytes(self, pass_name: str, heads: int, width: int) -> int:
        """Return the size of `struct Memory` of the pass."""
        groups, width = _groups(heads), self.padded(width) // self.split
        token = 2 * 8 * groups * width
        code = 2 * 8 * groups * self.queries * self.keys
        squares = 16 * 32 * self.warps * self.split
        if pass_name == "sums":
            return (self.queries + self.stages * self.keys) * token + squares
        if pass_name == "forward":
            exchanged = squares if self.split > 1 else 0
            return (self.queries + 2 * self.keys) * token + code + exchanged
        own, other = (self.keys, self.queries)[:: 1 if pass_name == "key" else -1]
        slices = width // 16
        round_keys = 16 if 2 * slices >= self.warps else min(self.keys, 8 * self.warps // slices)
        hidden = 2 * 2 * self.queries * round_keys * width
        scores = 2 * 8 * groups // self.split * (self.queries * (self.keys + 8) + 8)
        pairs = 4 * self.queries * (round_keys * (8 * groups + 4) + 8)
        inverse = 4 * self.queries * self.keys
        tokens = 2 * (own + self.stages * other) * token
        if self.bulk:
            hidden = max(hidden, 4 * self.queries * (heads * width + 8))
        if self.split == 1:
            return tokens + hidden + code + scores + inverse + max(squares, pairs)
        units = self.warps * math.ceil(self.queries / self.warps) * round_keys // 16
        message = units * 32 * (16 * groups // self.split + 2)
        received = (self.split - 1) * message
        return tokens + max(squares, hidden, pairs) + received + code + scores + inverse


def _groups(heads: int) -> int:
    """Count the eights of heads: 1, 2 or 4."""
    return 1 << (math.ceil(heads / 8) - 1).bit_length()


@functools.cache
def plans(pass_name: str, heads: int, width: int) -> tuple[TensorCorePlan, ...]:
    """List plans, the best first, as measured on an H200 (docs/kernel.md)."""
    if heads > MAX_HEADS:
        return ()
    if pass_name == "sums":
        # A warp for each eight queries, while the scores of all heads are few enough registers.
        tiles = [(64, 16, 2)] if heads <= 16 else []
        tiles += [(32, 16, 2), (32, 16, 1), (8, 16, 1)]
        return tuple(_plans_of(tiles))
    split = math.ceil(8 * _groups(heads) * TensorCorePlan.padded(width) / _MOST_OF_A_ROW)
    if pass_name == "forward":
        # A block that holds whole rows is faster, though its tiles are smaller.
        return tuple(p for parts in sorted({1, split}) for p in _forward_plans(heads, width, parts))
    if split > 1:
        return (TensorCorePlan(queries=16, keys=16, warps=WARPS, stages=1, split=split),)
    # Of 32 keys a query's gradient is added up before it goes to memory; but those of so many keys
    # are registers.
    tiles = [(16, 32, 2)] if pass_name == "key" and heads * width <= 512 else []
    tiles += [(16, 16, 2), (8, 16, 2), (8, 16, 1)]
    own = _plans_of(tiles)
    if pass_name == "key":
        own = [choice for plan in own for choice in (*_in_bulk(plan), plan)]
    return tuple(own)


def _in_bulk(plan: TensorCorePlan) -> list[TensorCorePlan]:
    """Return the plan with additions in bulk, if it has the stage that they overlap with."""
    return [replace(plan, bulk=True)] if plan.stages == 2 else []


def _plans_of(tiles: list[tuple[int, int, int]]) -> list[TensorCorePlan]:
    return [TensorCorePlan(queries=q, keys=k, warps=WARPS, stages=stages) for q, k, stages in tiles]


def _forward_plans(heads: int, width: int, split: int) -> list[TensorCorePlan]:
    slices = TensorCorePlan.padded(width) // split // 16
    eights = 2 if heads <= 16 else 1  # of queries a warp: their outputs are registers
    queries = 8 * eights * WARPS // slices
    plans = [
        TensorCorePlan(queries=queries, keys=keys, warps=WARPS, split=split)
        for keys in ((64, 32, 16) if split == 1 else (16,))
    ]
    fours = [replace(plan, warpgroups=True) for plan in plans if _suits_warpgroups(plan, heads)]
    return fours + plans


def _suits_warpgroups(plan: TensorCorePlan, heads: int) -> bool:
    """Say whether a tile has the 64 rows of a product, and few enough scores for registers."""
    return plan.split == 1 and plan.keys == 64 and heads <= 8

"""How `large_head_plain.cu` is laid out on the machine: float32 arithmetic, no tensor cores."""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

FORWARD = ("sums", "forward")
_SOURCES = (
    *("phi.cuh", "softmax.cuh", "tensor_core.cuh", "scalars.cuh", "output.cuh", "sequences.cuh"),
    "large_head_plain.cu",
)
_THREADS = 256
_MOST_FLOATS = 64  # of one token that a lane holds in registers; the backward twice as many
_CROWDED_FLOATS = 32  # so that the threads of two blocks fit


@dataclass(frozen=True, kw_only=True)
class PlainPlan:
    """A tile of queries × keys; a team of `lanes` lanes, each with `share` of d, takes a token.

    `blocks` is how many blocks must fit on a multiprocessor, which caps the registers of each.
    """

    contiguous_heads: ClassVar[bool] = True  # so that a head's address costs no instruction
    split: ClassVar[int] = 1  # a block has whole tokens

    queries: int
    keys: int
    lanes: int
    share: int
    blocks: int = 1
    warps: int = _THREADS // 32

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU has what it takes: every one has."""
        return True

    def sources(self, pass_name: str) -> tuple[str, ...]:
        """Return the files that make the pass."""
        return _SOURCES

    @staticmethod
    def padded(width: int) -> int:
        """Return the size that heads are padded to."""
        return math.ceil(width / 16) * 16

    def shared_bytes(self, pass_name: str, heads: int, width: int) -> int:
        """Return the size of `struct Memory` of the pass."""
        width = self.padded(width)
        pairs = self.queries * self.keys
        fours = math.ceil(heads / 4)
        code = pairs * 4 * (fours + 1 - fours % 2)
        pieces = sum(
            heads * (n * 20 + (16 if n % 8 == 0 else 0)) for n in (self.queries, self.keys)
        )
        floats = max(code, pieces) + heads * pairs
        if pass_name not in FORWARD:
            floats += pairs + math.ceil(width / (self.lanes * self.share)) * code
        if pass_name in ("query", "key"):
            floats += (self.keys if pass_name == "key" else self.queries) * heads * width
        return 4 * floats


@functools.cache
def plans(pass_name: str, heads: int, width: int) -> tuple[PlainPlan, ...]:
    """List plans, the best first; none where a row is too wide (beyond H · ⌈D / 64⌉ = 64)."""
    width = PlainPlan.padded(width)
    team = _team(heads, width)
    if team is None:
        return ()
    lanes, share = team
    floats = heads * share
    tokens = _THREADS // lanes // math.ceil(width / (lanes * share))
    if pass_name in FORWARD:
        queries = tokens * (2 if floats <= _CROWDED_FLOATS else 1)
        tiles = [(queries, keys) for keys in (32, 16, 8)]
    else:
        tiles = [(queries, tokens) for queries in (32, 16, 8, 4)]
    most_blocks = 2 if floats <= _CROWDED_FLOATS else 1
    return tuple(
        PlainPlan(queries=queries, keys=keys, lanes=lanes, share=share, blocks=blocks)
        for blocks in range(most_blocks, 0, -1)
        for queries, keys in tiles
        if blocks == 1 or _units(heads, queries, keys) <= _THREADS
    )


def _units(heads: int, queries: int, keys: int) -> int:
    """Count the blocks of 4 × 4 scores; two of them for a thread take too many registers."""
    return heads * queries * keys // 16


def _team(heads: int, width: int) -> tuple[int, int] | None:
    """Choose the lanes of a team and how much of d each owns; two teams at most take a token."""
    for lanes, teams in ((16, 1), (32, 1), (32, 2)):
        share = math.ceil(width / (lanes * teams))
        if heads * share <= _MOST_FLOATS:
            return lanes, share
    return None

"""How `small_head.cuh` is laid out on the machine: teams of lanes, and what one load takes."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

WARP = 32

# Rows per team and elements per lane and operand for SRAVEN's shapes on an H200: the fewest
# instructions a pair that registers leave room for.
_ROWS_AND_FLOATS = {"forward": (4, 16), "query": (2, 16), "key": (2, 16)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one pass is laid out on the machine: it changes the speed and the rounding, no more.

    A team of `lanes` lanes holds the heads of `rows` consecutive tokens. `blocks` is how many
    blocks of `threads` threads must fit on a multiprocessor, which caps the registers of each.
    `prefetch` loads one token ahead in the backward; the forward always does.
    """

    lanes: int
    rows: int
    threads: int = 64
    blocks: int = 1
    prefetch: bool = False


def choose_plan(pass_name: str, own: Tensor) -> Plan:
    """Choose the plan of a pass from the shape [B, T, H, D] of the tokens that its teams own."""
    batch, tokens, heads, width = own.shape
    lanes, rows, floats_per_lane = 1, *_ROWS_AND_FLOATS[pass_name]
    while 2 * lanes <= min(heads, WARP) and _lane_floats(heads, width, lanes) > floats_per_lane:
        lanes *= 2
    while rows > 1 and (_lane_floats(heads, width, lanes) * rows > 64 or width * rows > 16):
        rows //= 2

    # A small problem leaves the machine empty: more teams, then larger ones, and loads ahead.
    enough_threads = 32_768
    small = batch * tokens // rows * lanes < enough_threads
    while rows > 1 and batch * tokens // rows * lanes < enough_threads:
        rows //= 2
    while 2 * lanes <= min(heads, WARP) and batch * tokens * lanes < enough_threads:
        lanes *= 2
    return Plan(lanes=lanes, rows=rows, prefetch=small)


def _lane_floats(heads: int, width: int, lanes: int) -> int:
    return math.ceil(heads / lanes) * width


@dataclass(frozen=True)
class HeadOrder:
    """How heads are dealt out: units of `pack` neighbours, in turn to `lanes` lanes."""

    heads: int
    lanes: int
    pack: int

    @classmethod
    def of(cls, plan: Plan, operands: list[Tensor]) -> "HeadOrder":
        """Return that of a pass over these tensors [B, T, H, D]."""
        heads = operands[0].shape[2]
        return cls(heads, plan.lanes, heads_and_elements_per_load(heads, plan.lanes, operands)[0])

    @property
    def units(self) -> int:
        """Units of a lane, some of which may be empty."""
        return math.ceil(self.heads / (self.lanes * self.pack))

    @property
    def size(self) -> int:
        """Heads of all lanes together, with those that do not exist."""
        return self.units * self.lanes * self.pack

    def apply(self, bias: Tensor) -> Tensor:
        """Rearrange [Bb, H, ...] as [Bb, ..., lane, its heads], in float32."""
        missing = self.size - self.heads
        padded = F.pad(bias, (0, 0) * (bias.ndim - 2) + (0, missing)) if missing else bias
        dealt = padded.unflatten(1, (self.units, self.lanes, self.pack))
        together = dealt.permute(0, *range(4, dealt.ndim), 2, 1, 3)
        return together.to(torch.float32, memory_format=torch.contiguous_format).contiguous()

    def undo(self, x: Tensor) -> Tensor:
        """Rearrange [Bb, ..., heads in the lanes' order] as [Bb, H, ...]."""
        dealt = x.unflatten(-1, (self.lanes, self.units, self.pack))
        apart = dealt.permute(0, -2, -3, -1, *range(1, dealt.ndim - 3)).flatten(1, 3)
        return apart[:, : self.heads]


def heads_and_elements_per_load(heads: int, lanes: int, operands: list[Tensor]) -> tuple[int, int]:
    """Return the heads dealt out together and the elements per load that memory allows."""
    width, item = operands[0].shape[-1], operands[0].element_size()
    vector = 16 // item
    while vector > 1:
        aligned = all(
            x.data_ptr() % (vector * item) == 0 and all(s % vector == 0 for s in x.stride()[:2])
            for x in operands
        )
        for pack in (1, 2, 4, 8) if aligned else ():
            evenly = heads % pack == 0 and (heads // pack % lanes == 0 or heads % lanes != 0)
            if evenly and heads // pack >= lanes and pack * width % vector == 0:
                return pack, vector
        vector //= 2
    return 1, 1

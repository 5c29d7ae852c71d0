"""How `small_head.cuh` is laid out on the machine: teams of lanes, and what one load takes."""

import math
from dataclasses import dataclass

from torch import Tensor

WARP = 32

# Rows per team and elements per lane and operand that were fastest for SRAVEN's shapes (H200).
_MEASURED_BEST = {"forward": (4, 16), "query": (4, 8), "key": (2, 8)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one pass is laid out on the machine: it changes the speed and the rounding, no more.

    A team of `lanes` lanes holds the heads of `rows` consecutive tokens. `blocks` is how many
    blocks of `threads` threads must fit on a multiprocessor, which caps the registers of each.
    `prefetch` loads one token ahead.
    """

    lanes: int
    rows: int
    threads: int = 128
    blocks: int = 1
    prefetch: bool = False


def choose_plan(pass_name: str, own: Tensor) -> Plan:
    """Choose the plan of a pass from the shape [B, T, H, D] of the tokens that its teams own."""
    batch, tokens, heads, width = own.shape
    lanes, rows, floats_per_lane = 1, *_MEASURED_BEST[pass_name]
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
    # Four blocks cap a thread at 128 registers: enough for the keys' pass if a lane holds little.
    crowded = pass_name == "key" and _lane_floats(heads, width, lanes) * rows <= 16
    return Plan(
        lanes=lanes, rows=rows, blocks=4 if crowded else 1, prefetch=small or pass_name == "query"
    )


def _lane_floats(heads: int, width: int, lanes: int) -> int:
    return math.ceil(heads / lanes) * width


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

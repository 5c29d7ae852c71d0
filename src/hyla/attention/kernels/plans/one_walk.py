"""How `small_head_backward.cu` is laid out on the machine: a block for each sequence."""

import math

from hyla.attention.kernels.call import Call
from hyla.attention.kernels.nvrtc import RESERVED
from hyla.attention.kernels.plans.small import WARP, Plan

ROWS = 2
_LANE_FLOATS = 16  # of a token in a lane: keys, values and their gradients take 8 times as many
_BUSY_WARPS = 8  # on a multiprocessor: what its registers hold
_ENOUGH_WARPS = 512  # for all multiprocessors to have some


def choose_one_walk(call: Call, room: int) -> Plan | None:
    """Choose the plan for a backward in one walk; None where it takes two passes.

    `room` is the shared memory that a block may have.
    """
    (batch, queries, heads, width), keys = call.q.shape, call.k.shape[1]
    by_pair = call.bias is not None and call.bias.ndim == 4
    if by_pair or call.formula.causal or keys == 0:
        return None  # causality could be masked, but the passes skip what it hides
    lanes = 1
    while 2 * lanes <= min(heads, WARP) and (
        math.ceil(heads / lanes) * width > _LANE_FLOATS or WARP // lanes > queries
    ):
        lanes *= 2
    most_warps = min(_BUSY_WARPS, queries * lanes // WARP)  # each team at a query of its own
    if heads % lanes or heads // lanes * width > _LANE_FLOATS or most_warps == 0:
        return None
    warps = 1
    while 2 * warps <= most_warps:
        needed = shared_bytes(Plan(lanes=lanes, rows=ROWS, threads=WARP * warps), call)
        beside = (room + RESERVED) // (needed + RESERVED)
        if warps * beside >= _BUSY_WARPS and batch * warps >= _ENOUGH_WARPS:
            break
        warps *= 2
    plan = Plan(lanes=lanes, rows=ROWS, threads=WARP * warps, blocks=max(1, _BUSY_WARPS // warps))
    return plan if shared_bytes(plan, call) <= room else None


def shared_bytes(plan: Plan, call: Call) -> int:
    """Return the size of what `struct Sequence` of the source points to."""
    (_, queries, heads, width), keys = call.q.shape, call.k.shape[1]
    warps, at_once = plan.threads // WARP, 4 * plan.lanes
    rows = queries + WARP // plan.lanes - 1
    by_head = 3 * heads if call.formula.has_softmax else 0
    floats = rows * _padded(3 * heads * width + by_head, at_once)
    if call.bias is not None:
        distances = rows + (math.ceil(keys / ROWS) + warps - 1) * ROWS - 1
        floats += distances * _padded((1 + ROWS) * heads, at_once)
    return 4 * floats


def _padded(floats: int, at_once: int) -> int:
    return (math.ceil(floats / at_once) | 1) * at_once

"""Biases and their gradients as `small_head_walk.cuh` walks over them: a lane's heads together.

A bias is given for every pair [Bb, H, Tq, Tk], or by distance [Bb, H, Tq + Tk - 1]
(`hyla.attention.distance`).
"""

import math

import torch
from torch import Tensor

from hyla.attention.distance import sum_by_distance
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.plans.small import WARP, HeadOrder, Plan

# BIAS_GRADIENT of the source: none; a slab for each batch element; one for each warp, summed in a
# fixed order; or a common one, added to atomically.
NONE, EACH, PARTIAL, ATOMIC = range(4)


def gradient_slabs(call: Call, bias: Tensor, order: HeadOrder, plan: Plan) -> tuple[int, Tensor]:
    """Choose how bias gradients are gathered, and allocate [Bb, parts, query, key, heads]."""
    biases, shared_by, teams = len(bias), _shared_by(call, bias), WARP // plan.lanes
    tail = (call.q.shape[1], call.k.shape[1], order.size)
    like = {"dtype": torch.float32, "device": bias.device}
    if shared_by < teams:  # a warp of one tile from several batch elements would be half empty
        return EACH, torch.empty((biases, shared_by, *tail), **like)
    if call.in_fixed_order:
        parts = math.ceil(shared_by / teams)
        return PARTIAL, torch.empty((biases, parts, *tail), **like)
    return ATOMIC, torch.zeros((biases, 1, *tail), **like)


def distance_slabs(call: Call, bias: Tensor, order: HeadOrder) -> Tensor:
    """Allocate a gradient by distance for each batch element, [Bb, B / Bb, distance, heads]."""
    shape = (len(bias), _shared_by(call, bias), bias.shape[2], order.size)
    return torch.empty(shape, dtype=torch.float32, device=bias.device)


def sum_slabs(slabs: Tensor, bias: Tensor, order: HeadOrder) -> Tensor:
    """Return the gradient in the shape of the bias."""
    summed = slabs.sum(1) if slabs.shape[1] != 1 else slabs.squeeze(1)
    natural = order.undo(summed)
    if natural.ndim > bias.ndim:
        natural = sum_by_distance(natural)
    return natural.to(bias.dtype).contiguous()


def _shared_by(call: Call, bias: Tensor) -> int:
    """Count the batch elements of a bias, which may be none."""
    return len(call.q) // max(1, len(bias))

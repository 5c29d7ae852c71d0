"""Biases and their gradients in the order in which `small_head_walk.cuh` walks over them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention.kernels.plans.small import WARP, Plan

# BIAS_GRADIENT of the source: none; a slab for each batch element; one for each warp, summed in a
# fixed order; or a common one, added to atomically.
NONE, EACH, PARTIAL, ATOMIC = range(4)


def tile_bias(bias: Tensor, rows: int, *, own_keys: bool) -> Tensor:
    """Rearrange [Bb, H, Tq, Tk] as [Bb, tile, other token, H, row], in float32.

    What a team needs for one step of its walk is then contiguous.
    """
    own_last = bias if own_keys else bias.transpose(2, 3)  # [Bb, H, other, own]
    missing = -own_last.shape[3] % rows
    padded = F.pad(own_last, (0, missing)) if missing else own_last
    tiled = padded.unflatten(3, (-1, rows)).permute(0, 3, 2, 1, 4)
    return tiled.to(torch.float32, memory_format=torch.contiguous_format).contiguous()


def gradient_slabs(
    bias: Tensor, batch: int, plan: Plan, *, fixed_order: bool
) -> tuple[int, Tensor]:
    """Choose how bias gradients are gathered, and allocate [Bb, parts, tile, key, H, row]."""
    biases, heads, queries, keys = bias.shape
    shared_by, teams = batch // max(1, biases), WARP // plan.lanes
    tail = (math.ceil(queries / plan.rows), keys, heads, plan.rows)
    like = {"dtype": torch.float32, "device": bias.device}
    if shared_by < teams:  # a warp of one tile from several batch elements would be half empty
        return EACH, torch.empty((biases, shared_by, *tail), **like)
    if fixed_order:
        parts = math.ceil(shared_by / teams)
        return PARTIAL, torch.empty((biases, parts, *tail), **like)
    return ATOMIC, torch.zeros((biases, 1, *tail), **like)


def sum_slabs(slabs: Tensor, bias: Tensor) -> Tensor:
    """Undo the tiling of a bias gradient."""
    summed = slabs.sum(1) if slabs.shape[1] != 1 else slabs.squeeze(1)
    natural = summed.permute(0, 3, 1, 4, 2).flatten(2, 3)  # [Bb, H, Tq and more, Tk]
    return natural[:, :, : bias.shape[2]].to(bias.dtype).contiguous()

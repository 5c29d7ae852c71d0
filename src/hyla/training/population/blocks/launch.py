"""Starts the kernels of a block: where tokens are divided, and what becomes of their sums."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from hyla.nn.transformer import LAYER_NORM_EPS
from hyla.training.population.blocks import kernels


class Tiles(NamedTuple):
    """How a kernel divides its work."""

    rows: int
    """Tokens that a program takes at a time."""
    warps: int
    stages: int = 1
    """Copies of what a loop reads, so that the next is fetched while one is computed with."""
    chunk: int = 0
    """Hidden units of the feed-forward network at a time."""


# Chosen by what ptxas says for an E of 128: the largest that keep everything in registers.
PROJECT_FORWARD = Tiles(rows=64, warps=4)
PROJECT_BACKWARD = Tiles(rows=32, warps=8, stages=2)
FINISH_FORWARD = Tiles(rows=64, warps=8, chunk=32)
FINISH_TOKENS = Tiles(rows=32, warps=8, stages=2, chunk=64)
FINISH_WEIGHTS = Tiles(rows=32, warps=8, chunk=64)


def project(
    x: Float[Tensor, "P N E"], gain: Tensor, shift: Tensor, layers: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v [P, N, ...]; `layers` are the weights and biases of the three in turn."""
    x = x.contiguous()
    parameters, stride = _with_one_stride((gain, shift, *layers))
    q_weight, _, k_weight, _, v_weight, _ = layers
    q, k, v = (
        x.new_empty(*x.shape[:2], weight.shape[1]) for weight in (q_weight, k_weight, v_weight)
    )
    _start(
        kernels.project_forward,
        (-(-x.shape[1] // PROJECT_FORWARD.rows), len(x)),
        PROJECT_FORWARD,
        (x, *parameters, q, k, v),
        (x.shape[1], stride, LAYER_NORM_EPS),
        E=x.shape[2],
        QK=q.shape[2],
        V=v.shape[2],
    )
    return q, k, v


def project_backward(
    x: Float[Tensor, "P N E"],
    upstream: Sequence[Tensor],
    gain: Float[Tensor, "P E"],
    weights: Sequence[Tensor],
) -> tuple[Float[Tensor, "P N E"], Float[Tensor, "P S"]]:
    """Return the gradient of x, and all sums over tokens side by side (`kernels`)."""
    x = x.contiguous()
    parameters, stride = _with_one_stride((gain, *weights))
    total = sum(weight[0].numel() + weight.shape[1] for weight in weights)
    dx, sums = torch.empty_like(x), _parts(x, PROJECT_BACKWARD, total)
    _start(
        kernels.project_backward,
        (sums.shape[1], len(x)),
        PROJECT_BACKWARD,
        (x, *(d.contiguous() for d in upstream), *parameters, dx, sums),
        (x.shape[1], stride, total, LAYER_NORM_EPS),
        E=x.shape[2],
        QK=weights[0].shape[1],
        V=weights[2].shape[1],
        TURNS=_turns(x, PROJECT_BACKWARD, sums),
    )
    return dx, sums.sum(1)


def finish(
    x: Float[Tensor, "P N E"], attended: Float[Tensor, "P N V"], parameters: Sequence[Tensor]
) -> tuple[Float[Tensor, "P N E"], Float[Tensor, "P N E"]]:
    """Return the stream with attention, and with both branches.

    `parameters` are weight and bias of out_proj, gain and shift, weights and biases of up and down.
    """
    x, attended = x.contiguous(), attended.contiguous()
    between, y = torch.empty_like(x), torch.empty_like(x)
    strided, stride = _with_one_stride(parameters)
    _start(
        kernels.finish_forward,
        (-(-x.shape[1] // FINISH_FORWARD.rows), len(x)),
        FINISH_FORWARD,
        (x, attended, *strided, between, y),
        (x.shape[1], stride, LAYER_NORM_EPS),
        E=x.shape[2],
        V=attended.shape[2],
        M=parameters[4].shape[1],
    )
    return between, y


def finish_backward(
    between: Float[Tensor, "P N E"],
    attended: Float[Tensor, "P N V"],
    dy: Float[Tensor, "P N E"],
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x and `attended`, and the sums of either kernel (`kernels`).

    `parameters` are weight of out_proj, gain, shift, weight and bias of up, weight of down.
    """
    attended, dy = attended.contiguous(), dy.contiguous()
    tokens, embed, heads = *between.shape[1:], attended.shape[2]
    hidden = parameters[3].shape[1]
    (out, *feed_forward), stride = _with_one_stride(parameters)
    dx, dattended = torch.empty_like(dy), torch.empty_like(attended)
    sums = _parts(between, FINISH_TOKENS, embed * heads + 2 * embed)
    _start(
        kernels.finish_backward_tokens,
        (sums.shape[1], len(between)),
        FINISH_TOKENS,
        (between, attended, dy, out, *feed_forward, dx, dattended, sums),
        (tokens, stride, sums.shape[2], LAYER_NORM_EPS),
        E=embed,
        V=heads,
        M=hidden,
        TURNS=_turns(between, FINISH_TOKENS, sums),
    )
    chunks = hidden // _chunk(FINISH_WEIGHTS, hidden)
    weight_sums = _parts(between, FINISH_WEIGHTS, 2 * hidden * embed + hidden, beside=chunks)
    _start(
        kernels.finish_backward_weights,
        (weight_sums.shape[1], len(between), chunks),
        FINISH_WEIGHTS,
        (between, dy, *feed_forward, weight_sums),
        (tokens, stride, weight_sums.shape[2], LAYER_NORM_EPS),
        E=embed,
        M=hidden,
        TURNS=_turns(between, FINISH_WEIGHTS, weight_sums),
    )
    return dx, dattended, sums.sum(1), weight_sums.sum(1)


def _chunk(tiles: Tiles, hidden: int) -> int:
    return min(tiles.chunk, hidden)


def _parts(x: Tensor, tiles: Tiles, total: int, beside: int = 1) -> Float[Tensor, "P parts total"]:
    """Return room for sums in as many parts as fill the device once."""
    members, tokens = x.shape[:2]
    programs = _multiprocessors(x.device) // (members * beside)
    parts = max(1, min(programs, -(-tokens // tiles.rows)))
    return torch.empty(members, parts, total, device=x.device)


def _turns(x: Tensor, tiles: Tiles, sums: Tensor) -> int:
    """Return how often each part takes some rows, until all tokens have been taken."""
    return -(-x.shape[1] // (tiles.rows * sums.shape[1]))


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4  # where kernels are interpreted: enough that sums have several parts
    return torch.cuda.get_device_properties(device).multi_processor_count


def _with_one_stride(parameters: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """Return the parameters [P, ...] such that one stride leads to each next member's."""
    strides = {parameter.stride(0) for parameter in parameters}
    if len(strides) == 1 and all(parameter[0].is_contiguous() for parameter in parameters):
        return list(parameters), strides.pop()
    rows = torch.cat([parameter.flatten(1) for parameter in parameters], dim=1)
    return list(rows.split([parameter[0].numel() for parameter in parameters], dim=1)), len(rows[0])


def _start(
    kernel: Any,
    grid: tuple[int, ...],
    tiles: Tiles,
    tensors: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    **sizes: int,
) -> None:
    x = tensors[0]
    if tiles.chunk:
        sizes["CHUNK"] = _chunk(tiles, sizes["M"])
    tf32 = torch.get_float32_matmul_precision() != "highest"
    kernel[grid](
        *tensors,
        *numbers,
        **sizes,
        ROWS=tiles.rows,
        # Triton's interpreter multiplies bfloat16 as if it were integers.
        BF16=x.dtype == torch.bfloat16 and x.is_cuda,
        PRECISION="tf32" if tf32 else "ieee",
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )

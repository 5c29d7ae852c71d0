"""The parts of a block on the device: which kernels run one after the other, and on what."""

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hyla.attention.kernels.nvrtc import multiprocessors
from hyla.attention.kernels.tensors import aligned, fresh
from hyla.nn.transformer import LAYER_NORM_EPS
from hyla.training.population.blocks import weights as weight_tiles
from hyla.training.population.blocks.gradients import finish_gradients, project_gradients
from hyla.training.population.blocks.kernel import line, start
from hyla.training.population.blocks.sizes import EMBED, SLICE, Sizes
from hyla.training.population.blocks.structures import (
    FinishForward,
    HiddenBackward,
    Line,
    LinearBackward,
    ProjectForward,
    StreamBackward,
)
from hyla.training.population.blocks.weights import FinishPlaces, ProjectPlaces

FINISH_STAGES = 3  # pieces of weights that are on their way to a block
_WARPGROUP = 128  # threads
_ROWS = 64  # tokens of a warpgroup
_FEW_ROWS = 32  # of a block, where tiles of them must leave room for two weights
_BARRIER = 8  # bytes


def lay_out(
    parameters: Sequence[Tensor], dtype: torch.dtype
) -> tuple[UInt8[Tensor, "P A"], UInt8[Tensor, "P B"]]:
    """Return the weights of a block as tiles, for `project` and for `finish`.

    `parameters` are those of both, in their order.
    """
    return weight_tiles.block_weights(sizes_of(parameters, dtype), parameters)


def sizes_of(parameters: Sequence[Tensor], dtype: torch.dtype) -> Sizes:
    """Return the sizes of a block with these parameters."""
    qk, v, hidden = (parameters[i].shape[1] for i in (2, 6, 12))
    return Sizes(dtype=dtype, qk=qk, v=v, hidden=hidden)


def project(
    x: Float[Tensor, "P N E"], weights: UInt8[Tensor, "P A"], qk: int, v: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v [P, N, ...]."""
    x = _dense(x)
    sizes = Sizes(dtype=x.dtype, qk=qk, v=v)
    places = ProjectPlaces.of(sizes)
    outputs = [_tokens(x, width) for width in (qk, qk, v)]
    warpgroups = _warpgroups(x)
    arguments = ProjectForward(
        x=x.data_ptr(),
        **_of(weights),
        **{name: y.data_ptr() for name, y in zip("qkv", outputs, strict=True)},
        tiles_at=places.forward,
        bias_at=places.bias,
        line=line(x, _ROWS * warpgroups),
        eps=LAYER_NORM_EPS,
    )
    macros = {"QK": qk, "V": v, "WARPGROUPS": warpgroups}
    shared = sizes.tile(sizes.projected, EMBED) + _BARRIER
    _walk("project_forward", sizes, macros, arguments, x, warpgroups, shared)
    return outputs[0], outputs[1], outputs[2]


def project_backward(
    x: Float[Tensor, "P N E"],
    residual: Float[Tensor, "P N E"],
    upstream: Sequence[Tensor],
    weights: UInt8[Tensor, "P B"],
    parameters: Sequence[Tensor],
) -> tuple[Float[Tensor, "P N E"], Float[Tensor, "P T"]]:
    """Return the gradient of x, to which `residual` is added, and those of all parameters.

    The latter side by side, in the order of `parameters`: gain, shift, and the weights and biases
    of queries, keys and values in turn.
    """
    x, residual, *upstream = (_dense(y) for y in (x, residual, *upstream))
    sizes = Sizes(dtype=x.dtype, qk=upstream[0].shape[2], v=upstream[2].shape[2])
    dx, sums, walk = _linear_backward(
        sizes, x, upstream, weights, ProjectPlaces.of(sizes).backward, residual
    )
    return dx, project_gradients(sizes, parameters, sums, walk)


def finish(
    x: Float[Tensor, "P N E"],
    attended: Float[Tensor, "P N V"],
    weights: UInt8[Tensor, "P B"],
    hidden: int,
) -> tuple[Float[Tensor, "P N E"], Float[Tensor, "P N E"]]:
    """Return the stream with both branches, and with attention's alone."""
    x, attended = _dense(x), _dense(attended)
    sizes = Sizes(dtype=x.dtype, v=attended.shape[2], hidden=hidden)
    places = FinishPlaces.of(sizes)
    y, between, warpgroups = fresh(x), fresh(x), _warpgroups(x)
    arguments = FinishForward(
        x=x.data_ptr(),
        attended=attended.data_ptr(),
        **_of(weights),
        between=between.data_ptr(),
        y=y.data_ptr(),
        out_at=places.out,
        chunks_at=places.chunks,
        bias_at=places.bias,
        line=line(x, _ROWS * warpgroups),
        eps=LAYER_NORM_EPS,
    )
    macros = {
        "V": sizes.v,
        "HIDDEN": sizes.hidden,
        "STAGES": FINISH_STAGES,
        "WARPGROUPS": warpgroups,
    }
    ring = FINISH_STAGES * (weight_tiles.chunk_bytes(sizes) + 2 * _BARRIER)
    shared = sizes.tile(EMBED, sizes.v) + _BARRIER + ring
    _walk("finish_forward", sizes, macros, arguments, x, warpgroups, shared)
    return y, between


def finish_backward(
    between: Float[Tensor, "P N E"],
    attended: Float[Tensor, "P N V"],
    dy: Float[Tensor, "P N E"],
    weights: UInt8[Tensor, "P B"],
    parameters: Sequence[Tensor],
) -> tuple[Float[Tensor, "P N E"], Float[Tensor, "P N V"], Float[Tensor, "P T"]]:
    """Return the gradients of x, of `attended`, and of all parameters side by side.

    `parameters` are weight and bias of out_proj, gain and shift, weights and biases of up and down.
    """
    attended, dy = _dense(attended), _dense(dy)
    sizes = Sizes(dtype=dy.dtype, v=attended.shape[2], hidden=parameters[4].shape[1])
    places = FinishPlaces.of(sizes)
    hidden, hidden_sums, hidden_walk = _hidden_backward(sizes, between, dy, weights, places)
    dx = _stream_backward(sizes, between, dy, hidden, weights, places)
    dattended, sums, walk = _linear_backward(sizes, attended, [dx], weights, places.attended)
    gradients = finish_gradients(sizes, parameters, hidden_sums, hidden_walk, sums, walk)
    return dx, dattended, gradients


def _hidden_backward(
    sizes: Sizes, between: Tensor, dy: Tensor, weights: Tensor, places: FinishPlaces
) -> tuple[Tensor, Tensor, Line]:
    """Return the gradient of the hidden layer, and rows of sums for the weights beside it."""
    # As few blocks as have no more tiles each: every one has 128 KiB of sums to write, and somebody
    # to add them up.
    tiles = -(-dy.shape[0] * dy.shape[1] // _FEW_ROWS)
    passes = max(1, -(-tiles // (multiprocessors(dy.device) // sizes.slices)))
    walk = line(dy, passes * _FEW_ROWS, sizes.slices)
    hidden = _tokens(dy, sizes.hidden)
    sums = _rows(dy, walk, 2 * SLICE * EMBED + SLICE + EMBED, sizes.slices)
    arguments = HiddenBackward(
        stream=between.data_ptr(),
        upstream=dy.data_ptr(),
        **_of(weights),
        hidden=hidden.data_ptr(),
        sums=sums.data_ptr(),
        slices_at=places.slices,
        slice_stride=weight_tiles.slice_bytes(sizes),
        bias_at=places.bias + 8 * EMBED,
        line=walk,
        eps=LAYER_NORM_EPS,
    )
    of_tokens = 2 * sizes.tile(_FEW_ROWS, EMBED) + 4 * sizes.tile(EMBED, _FEW_ROWS)
    shared = weight_tiles.slice_bytes(sizes) + of_tokens + _BARRIER
    macros = {"HIDDEN": sizes.hidden}
    _walk("hidden_backward", sizes, macros, arguments, dy, 2, shared, sizes.slices)
    return hidden, sums, walk


def _stream_backward(
    sizes: Sizes,
    between: Tensor,
    dy: Tensor,
    hidden: Tensor,
    weights: Tensor,
    places: FinishPlaces,
) -> Float[Tensor, "P N E"]:
    """Return the gradient of the stream, from that of the hidden layer and of y."""
    dx, warpgroups = fresh(dy), _warpgroups(dy)
    arguments = StreamBackward(
        stream=between.data_ptr(),
        upstream=dy.data_ptr(),
        hidden=hidden.data_ptr(),
        **_of(weights),
        result=dx.data_ptr(),
        tile_at=places.stream,
        line=line(dy, _ROWS * warpgroups),
        eps=LAYER_NORM_EPS,
    )
    macros = {"HIDDEN": sizes.hidden, "WARPGROUPS": warpgroups}
    shared = sizes.tile(EMBED, sizes.hidden) + _BARRIER
    _walk("stream_backward", sizes, macros, arguments, dy, warpgroups, shared)
    return dx


def _linear_backward(
    sizes: Sizes,
    inputs: Float[Tensor, "P N I"],
    upstream: Sequence[Tensor],
    weights: Tensor,
    tile_at: int,
    residual: Float[Tensor, "P N I"] | None = None,
) -> tuple[Float[Tensor, "P N I"], Tensor, Line]:
    """Return the gradient of inputs, and rows of sums for the weights; with `residual` normed."""
    width, up = inputs.shape[2], sum(each.shape[2] for each in upstream)
    walk = line(inputs, _ROWS)
    result, sums = fresh(inputs), _rows(inputs, walk, up * width + up)
    pointers = [each.data_ptr() for each in upstream]
    arguments = LinearBackward(
        upstream=(ctypes.c_void_p * 3)(*pointers),
        input=inputs.data_ptr(),
        residual=None if residual is None else residual.data_ptr(),
        **_of(weights),
        result=result.data_ptr(),
        sums=sums.data_ptr(),
        tile_at=tile_at,
        line=walk,
        eps=LAYER_NORM_EPS,
    )
    macros = {"NORMED": int(residual is not None), "QK": sizes.qk, "V": sizes.v}
    tiles = sizes.tile(width, up) + sizes.tile(_ROWS, up)
    tiles += sizes.tile(up, _ROWS) + sizes.tile(width, _ROWS)
    of_rows = _ROWS * (2 * 8 + 4)  # bytes: two sums in either warpgroup, one deviation
    _walk("linear_backward", sizes, macros, arguments, inputs, 2, tiles + of_rows + _BARRIER)
    return result, sums, walk


def _warpgroups(x: Tensor) -> int:
    """Return those of a block that takes tokens through its registers, 64 in each warpgroup.

    Two, so that one computes while the other one's products run; but one where there are so few
    tokens that a second would leave multiprocessors without any.
    """
    members, tokens = x.shape[:2]
    return 1 if members * tokens <= _ROWS * multiprocessors(x.device) else 2


def _walk(
    name: str,
    sizes: Sizes,
    macros: dict[str, int],
    arguments: ctypes.Structure,
    x: Tensor,
    warpgroups: int,
    shared_bytes: int,
    slices: int = 1,
) -> None:
    """Start a kernel that walks along a line of tokens, some blocks beside each other."""
    start(
        name,
        {"KIND": sizes.kind, **macros},
        arguments,
        x.device,
        blocks=arguments.line.blocks * slices,  # type: ignore[attr-defined]
        threads=_WARPGROUP * warpgroups,
        shared_bytes=shared_bytes,
    )


def _of(weights: Tensor) -> dict[str, int]:
    return {"weights": weights.data_ptr(), "weights_stride": weights.stride(0)}


def _tokens(x: Tensor, width: int) -> Tensor:
    return torch.empty(*x.shape[:2], width, dtype=x.dtype, device=x.device)


def _rows(x: Tensor, walk: Line, length: int, slices: int = 1) -> Float[Tensor, "R S L"]:
    """Return room for the sums of every block and member (`shares.cuh`)."""
    return torch.empty(walk.blocks + walk.members, slices, length, device=x.device)


def _dense(x: Tensor) -> Tensor:
    return aligned(x.contiguous())

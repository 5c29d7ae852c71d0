"""Gradients of parameters from rows of sums: the host side of `gradients.cu`."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from hyla.attention.kernels.nvrtc import multiprocessors
from hyla.training.population.blocks.kernel import start
from hyla.training.population.blocks.parameters import with_one_stride
from hyla.training.population.blocks.sizes import EMBED, SLICE, Sizes
from hyla.training.population.blocks.structures import Gradients, Layer, Line, Plain, Sums

_SEATS = 512  # of a block; one or two threads of each share out rows
_NORM_BLOCKS = 16  # of a member, each with eight channels
_SHARED_BYTES = 4 * (_SEATS * 5 + _SEATS // 32 * 2 * 8)


def project_gradients(
    sizes: Sizes, parameters: Sequence[Tensor], rows: Tensor, walk: Line
) -> Float[Tensor, "P T"]:
    """Return those of gain, shift, and weights and biases of queries, keys and values."""
    (gain, shift, *layers), stride = with_one_stride(parameters)
    places = _places(parameters)
    bias_start = sizes.projected * EMBED
    behind = [
        Layer(weight=weight.data_ptr(), outputs=weight.shape[1], to=place)
        for weight, place in zip(layers[::2], places[2::2], strict=False)
    ]
    starts = accumulate((layer.outputs for layer in behind), initial=bias_start)
    plain = [
        Plain(start=at, rows=1, columns=layer.outputs, to=place, slices=1)
        for at, layer, place in zip(starts, behind, places[3::2], strict=False)
    ]
    arguments = Gradients(
        sums=(Sums * 2)(_sums(rows, walk)),
        layers=(Layer * 3)(*behind),
        layer_kinds=len(behind),
        gain=gain.data_ptr(),
        shift=shift.data_ptr(),
        gain_to=places[0],
        shift_to=places[1],
        stride=stride,
        outputs=sizes.projected,
        bias_start=bias_start,
    )
    return _computed(arguments, plain, gain, places[-1])


def finish_gradients(
    sizes: Sizes,
    parameters: Sequence[Tensor],
    hidden_rows: Tensor,
    hidden_walk: Line,
    rows: Tensor,
    walk: Line,
) -> Float[Tensor, "P T"]:
    """Return those of out_proj, gain and shift, up and down; `hidden_rows` hold up and down."""
    (out, _, gain, shift, up, *_), stride = with_one_stride(parameters)
    places = _places(parameters)
    out_to, out_bias_to, gain_to, shift_to, up_to, up_bias_to, down_to, down_bias_to, total = places
    hidden, slices = sizes.hidden, sizes.slices
    down, up_bias = SLICE * EMBED, 2 * SLICE * EMBED
    plain = [
        Plain(sums=1, start=0, rows=1, columns=out[0].numel(), to=out_to, slices=1),
        Plain(sums=1, start=out[0].numel(), rows=1, columns=EMBED, to=out_bias_to, slices=1),
        Plain(start=up_bias, rows=1, columns=SLICE, to=up_bias_to, slices=slices),
        Plain(start=down, rows=EMBED, columns=SLICE, to=down_to, to_stride=hidden, slices=slices),
        Plain(start=up_bias + SLICE, rows=1, columns=EMBED, to=down_bias_to, slices=1),
    ]
    arguments = Gradients(
        sums=(Sums * 2)(_sums(hidden_rows, hidden_walk), _sums(rows, walk)),
        layers=(Layer * 3)(Layer(weight=up.data_ptr(), outputs=hidden, to=up_to)),
        layer_kinds=1,
        gain=gain.data_ptr(),
        shift=shift.data_ptr(),
        gain_to=gain_to,
        shift_to=shift_to,
        stride=stride,
        outputs=SLICE,
        bias_start=up_bias,
    )
    return _computed(arguments, plain, gain, total)


def _places(parameters: Sequence[Tensor]) -> list[int]:
    """Return where the gradient of each begins in a member's, and where they end."""
    return list(accumulate((parameter[0].numel() for parameter in parameters), initial=0))


def _sums(rows: Float[Tensor, "R S L"], walk: Line) -> Sums:
    slices, length = rows.shape[1:]
    return Sums(rows=rows.data_ptr(), length=length, slices=slices, line=walk)


def _computed(
    arguments: Gradients, plain: Sequence[Plain], like: Tensor, total: int
) -> Float[Tensor, "P T"]:
    members, device = len(like), like.device
    result = torch.empty(members, total, device=device)
    arguments.plain = (Plain * 5)(*plain)
    arguments.plain_kinds = len(plain)
    arguments.result, arguments.total = result.data_ptr(), total
    fours = sum(each.rows * each.columns * each.slices // 4 for each in plain)
    arguments.plain_blocks = -(-fours // _SEATS)
    blocks = members * (_NORM_BLOCKS + arguments.plain_blocks)
    parts = 2 if blocks <= multiprocessors(device) else 1
    macros = {"KIND": 2, "PARTS": parts}  # sums are float32, whatever tokens are
    start(
        "gradients",
        macros,
        arguments,
        device,
        blocks=blocks,
        threads=parts * _SEATS,
        shared_bytes=_SHARED_BYTES,
    )
    return result

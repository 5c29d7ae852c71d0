"""A member's weights as tiles, for each kernel in its own order: the host side of `weights.cu`.

Where they lie depends on sizes alone, so every kernel is told by them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hyla.training.population.blocks.kernel import start
from hyla.training.population.blocks.parameters import with_one_stride
from hyla.training.population.blocks.sizes import CHUNK, EMBED, SLICE, Sizes
from hyla.training.population.blocks.structures import Bias, Part, Tiles, Weights

_PLAIN, _COLUMNS, _TERMS, _HIDDEN = range(4)  # ORDER_… of the source
_IN_REGISTERS: dict[str, Any] = {"row_order": _COLUMNS, "term_order": _TERMS}
_THREADS = 256
_PIECE = 16  # bytes that a thread writes


@dataclass(frozen=True)
class ProjectPlaces:
    """Where the tiles of queries, keys and values begin, in bytes."""

    forward: int
    backward: int
    bias: int
    total: int

    @classmethod
    def of(cls, sizes: Sizes) -> "ProjectPlaces":
        """Lay them out one after the other."""
        forward, backward = sizes.tile(sizes.projected, EMBED), sizes.tile(EMBED, sizes.projected)
        return cls(*accumulate((forward, backward, 4 * sizes.projected), initial=0))


@dataclass(frozen=True)
class FinishPlaces:
    """Where the tiles of `out_proj` and of the feed-forward network begin, in bytes."""

    out: int
    chunks: int
    slices: int
    stream: int
    attended: int
    bias: int
    total: int

    @classmethod
    def of(cls, sizes: Sizes) -> "FinishPlaces":
        """Lay them out one after the other."""
        hidden = sizes.hidden
        lengths = (
            sizes.tile(EMBED, sizes.v),
            hidden // CHUNK * chunk_bytes(sizes),
            hidden // SLICE * slice_bytes(sizes),
            sizes.tile(EMBED, hidden),
            sizes.tile(sizes.v, EMBED),
            4 * (2 * EMBED + hidden),
        )
        return cls(*accumulate(lengths, initial=0))


def chunk_bytes(sizes: Sizes) -> int:
    """Return the bytes of both weights of a chunk of the hidden layer."""
    return sizes.tile(CHUNK, EMBED) + sizes.tile(EMBED, CHUNK)


def slice_bytes(sizes: Sizes) -> int:
    """Return the bytes of both weights of a slice of the hidden layer."""
    return 2 * sizes.tile(SLICE, EMBED)


def block_weights(
    sizes: Sizes, parameters: Sequence[Tensor]
) -> tuple[UInt8[Tensor, "P A"], UInt8[Tensor, "P B"]]:
    """Lay out all weights and biases of a block: those before attention, and those after it.

    `parameters` are those of `launch.project` and then those of `launch.finish`.
    """
    parameters, stride = with_one_stride(parameters)
    totals = (ProjectPlaces.of(sizes).total, FinishPlaces.of(sizes).total)
    parts = [
        torch.empty(len(parameters[0]), total, dtype=torch.uint8, device=parameters[0].device)
        for total in totals
    ]
    described = (_of_project(sizes, parameters[:8]), _of_finish(sizes, parameters[8:]))
    tiles, biases = [], []
    for part, (some_tiles, some_biases) in enumerate(described):
        for each in (*some_tiles, *some_biases):
            each.part = part
        tiles, biases = [*tiles, *some_tiles], [*biases, *some_biases]
    numbers = sum(each.rows * each.terms * each.count for each in tiles)
    arguments = Weights(
        tiles=(Tiles * 13)(*tiles),
        biases=(Bias * 6)(*biases),
        parts=(Part * 2)(*(Part(weights=x.data_ptr(), stride=x.stride(0)) for x in parts)),
        stride=stride,
        tile_kinds=len(tiles),
        bias_kinds=len(biases),
        tile_blocks=-(-numbers * sizes.dtype.itemsize // (_PIECE * _THREADS)),
        bias_blocks=-(-sum(each.count for each in biases) * 32 // _THREADS),
    )
    device, blocks = (
        parts[0].device,
        len(parts[0]) * (arguments.tile_blocks + arguments.bias_blocks),
    )
    start("weights", {"KIND": sizes.kind}, arguments, device, blocks=blocks, threads=_THREADS)
    return parts[0], parts[1]


def _of_project(sizes: Sizes, parameters: Sequence[Tensor]) -> tuple[list[Tiles], list[Bias]]:
    """Describe weights and biases of queries, keys and values behind their norm."""
    gain, shift, *layers = parameters
    places = ProjectPlaces.of(sizes)
    tiles, biases, before = [], [], 0
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        forward = places.forward + sizes.tile(before, EMBED)
        tiles += [
            _tiles(weight, forward, gain=gain, **_IN_REGISTERS),
            _tiles(
                weight,
                places.backward,
                transposed=True,
                gain=gain,
                row_order=_COLUMNS,
                first_term=before,
            ),
        ]
        biases.append(_bias(bias, places.bias + 4 * before, weight, shift))
        before += weight.shape[1]
    return tiles, biases


def _of_finish(sizes: Sizes, parameters: Sequence[Tensor]) -> tuple[list[Tiles], list[Bias]]:
    """Describe those of `out_proj` and of the feed-forward network behind its norm."""
    out, out_bias, gain, shift, up, up_bias, down, down_bias = parameters
    places, hidden = FinishPlaces.of(sizes), sizes.hidden
    chunks: dict[str, Any] = {"count": hidden // CHUNK, "step": chunk_bytes(sizes)}
    slices: dict[str, Any] = {"count": hidden // SLICE, "step": slice_bytes(sizes)}
    down_of_chunk = places.chunks + sizes.tile(CHUNK, EMBED)
    down_of_slice = places.slices + sizes.tile(SLICE, EMBED)
    of_rows = {"rows": CHUNK, "source_step": CHUNK * EMBED, **chunks, **_IN_REGISTERS}
    of_terms = {"terms": CHUNK, "source_step": CHUNK, **chunks, **_IN_REGISTERS}
    of_slices = {"rows": SLICE, **slices}
    tiles = [
        _tiles(out, places.out, **_IN_REGISTERS),
        _tiles(up, places.chunks, gain=gain, **of_rows),
        _tiles(down, down_of_chunk, **of_terms),
        _tiles(up, places.slices, gain=gain, source_step=SLICE * EMBED, **of_slices),
        _tiles(down, down_of_slice, transposed=True, source_step=SLICE, **of_slices),
        _tiles(
            up, places.stream, transposed=True, gain=gain, row_order=_COLUMNS, term_order=_HIDDEN
        ),
        _tiles(out, places.attended, transposed=True, row_order=_COLUMNS),
    ]
    biases = [
        _bias(out_bias, places.bias),
        _bias(down_bias, places.bias + 4 * EMBED),
        _bias(up_bias, places.bias + 8 * EMBED, up, shift),
    ]
    return tiles, biases


def _tiles(
    weight: Float[Tensor, "P O I"],
    at: int,
    *,
    transposed: bool = False,
    gain: Float[Tensor, "P I"] | None = None,
    **described: Any,
) -> Tiles:
    """Describe tiles of a weight, outputs as rows and inputs as terms, or the other way round."""
    outputs, inputs = weight.shape[1:]
    strides = (1, inputs) if transposed else (inputs, 1)
    whole = {"rows": inputs if transposed else outputs, "terms": outputs if transposed else inputs}
    return Tiles(
        source=weight.data_ptr(),
        gain=None if gain is None else gain.data_ptr(),
        row_stride=strides[0],
        term_stride=strides[1],
        gain_by_rows=int(transposed),
        at=at,
        **{**whole, "count": 1, **described},
    )


def _bias(
    bias: Float[Tensor, "P O"],
    at: int,
    weight: Float[Tensor, "P O E"] | None = None,
    shift: Float[Tensor, "P E"] | None = None,
) -> Bias:
    return Bias(
        source=bias.data_ptr(),
        weight=None if weight is None else weight.data_ptr(),
        shift=None if shift is None else shift.data_ptr(),
        count=bias.shape[1],
        at=at,
    )

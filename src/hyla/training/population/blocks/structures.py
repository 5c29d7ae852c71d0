"""The structures that kernels of blocks take, field by field as in their sources."""

import ctypes
from collections.abc import Sequence

Field = tuple[str, type]


def _all(kind: type, *names: str) -> Sequence[Field]:
    return [(name, kind) for name in names]


def _pointers(*names: str) -> Sequence[Field]:
    return _all(ctypes.c_void_p, *names)


def _ints(*names: str) -> Sequence[Field]:
    return _all(ctypes.c_int, *names)


def _longs(*names: str) -> Sequence[Field]:
    return _all(ctypes.c_longlong, *names)


class Line(ctypes.Structure):
    """`struct Line` of shares.cuh."""

    _fields_ = _ints("members", "tokens", "blocks")


_WALK = [("line", Line), ("eps", ctypes.c_float)]  # how most of them end


class Tiles(ctypes.Structure):
    """`struct Tiles` of weights.cu."""

    _fields_ = [
        *_pointers("source", "gain"),
        *_ints("row_stride", "term_stride", "gain_by_rows"),
        *_ints("rows", "terms", "row_order", "term_order", "first_term"),
        *_ints("part", "at", "count", "source_step", "step"),
    ]


class Bias(ctypes.Structure):
    """`struct Bias` of weights.cu."""

    _fields_ = [*_pointers("source", "weight", "shift"), *_ints("count", "part", "at")]


class Part(ctypes.Structure):
    """`struct Part` of weights.cu."""

    _fields_ = [*_pointers("weights"), *_longs("stride")]


class Weights(ctypes.Structure):
    """`struct Arguments` of weights.cu."""

    _fields_ = [
        ("tiles", Tiles * 13),
        ("biases", Bias * 6),
        ("parts", Part * 2),
        *_longs("stride"),
        *_ints("tile_kinds", "bias_kinds", "tile_blocks", "bias_blocks"),
    ]


class ProjectForward(ctypes.Structure):
    """`struct Arguments` of project_forward.cu."""

    _fields_ = [
        *_pointers("x", "weights", "q", "k", "v"),
        *_longs("weights_stride"),
        *_ints("tiles_at", "bias_at"),
        *_WALK,
    ]


class FinishForward(ctypes.Structure):
    """`struct Arguments` of finish_forward.cu."""

    _fields_ = [
        *_pointers("x", "attended", "weights", "between", "y"),
        *_longs("weights_stride"),
        *_ints("out_at", "chunks_at", "bias_at"),
        *_WALK,
    ]


class HiddenBackward(ctypes.Structure):
    """`struct Arguments` of hidden_backward.cu."""

    _fields_ = [
        *_pointers("stream", "upstream", "weights", "hidden", "sums"),
        *_longs("weights_stride"),
        *_ints("slices_at", "slice_stride", "bias_at"),
        *_WALK,
    ]


class StreamBackward(ctypes.Structure):
    """`struct Arguments` of stream_backward.cu."""

    _fields_ = [
        *_pointers("stream", "upstream", "hidden", "weights", "result"),
        *_longs("weights_stride"),
        *_ints("tile_at"),
        *_WALK,
    ]


class LinearBackward(ctypes.Structure):
    """`struct Arguments` of linear_backward.cu."""

    _fields_ = [
        ("upstream", ctypes.c_void_p * 3),
        *_pointers("input", "residual", "weights", "result", "sums"),
        *_longs("weights_stride"),
        *_ints("tile_at"),
        *_WALK,
    ]


class Sums(ctypes.Structure):
    """`struct Sums` of gradients.cu."""

    _fields_ = [*_pointers("rows"), *_ints("length", "slices"), ("line", Line)]


class Layer(ctypes.Structure):
    """`struct Layer` of gradients.cu."""

    _fields_ = [*_pointers("weight"), *_ints("outputs", "to")]


class Plain(ctypes.Structure):
    """`struct Plain` of gradients.cu."""

    _fields_ = _ints("sums", "start", "rows", "columns", "to", "to_stride", "slices")


class Gradients(ctypes.Structure):
    """`struct Arguments` of gradients.cu."""

    _fields_ = [
        ("sums", Sums * 2),
        ("layers", Layer * 3),
        ("plain", Plain * 5),
        *_pointers("gain", "shift", "result"),
        *_longs("stride"),
        *_ints("total", "layer_kinds", "plain_kinds", "plain_blocks"),
        *_ints("outputs", "bias_start", "gain_to", "shift_to"),
    ]

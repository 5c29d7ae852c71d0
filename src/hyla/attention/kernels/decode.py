"""Decoding, one query against a cache: the host side of `decode.cu`. No gradients."""

import ctypes
import math

import torch
from torch import Tensor

from hyla.attention.kernels import nvrtc, output_stage
from hyla.attention.kernels.call import Call, Gradients
from hyla.attention.kernels.formula import read_sources
from hyla.attention.kernels.gradients import needs_gradient
from hyla.attention.kernels.tensors import Tensor4, aligned, describe_call, macros, why_unreadable

load_kernel = nvrtc.load_kernel
raw_upstream = output_stage.raw_upstream
DEVICES = ("cuda",)
VALUES = ("hidden",)
MAX_HEADS = 64
MAX_WIDTH = 128
MAX_ROW = 4096  # H · D: the outputs that a warp's lanes hold in registers

_WARPS = 8
_SHARED = 48 * 1024  # bytes that every GPU gives a block
_LEAST = 32  # keys of a block
_RESIDENT = 2  # blocks on a multiprocessor, where registers allow it
_FEW = 4  # blocks for a sequence, below which some multiprocessors would have nothing to do


def why_unsupported(call: Call) -> str | None:
    """Say why the decoding kernel cannot compute this, or return None if it can."""
    reason = call.formula.why_unsupported(VALUES)
    if reason is not None:
        return reason
    _, queries, heads, width = call.q.shape
    if queries != 1 or call.packing is not None or call.multiplier is not None:
        return "it takes one query per sequence and no code multiplier"
    if needs_gradient(call.q, call.k, call.v, call.bias):
        return "decoding has no gradient"
    if call.paging is not None and (call.bias is not None or call.padding is not None):
        return "a cache in pages takes neither bias nor padding"
    if heads > MAX_HEADS or width > MAX_WIDTH or width % 8 or heads * width > MAX_ROW:
        return (
            f"it takes up to {MAX_HEADS} heads of a size that is a multiple of 8 up to "
            f"{MAX_WIDTH}, and H · D up to {MAX_ROW}, got H = {heads}, D = {width}"
        )
    return why_unreadable(call, DEVICES)


def forward(
    call: Call, *, total_factor: Tensor | None = None, log_sum: Tensor | None = None
) -> Tensor:
    """Return the output [B, 1, H, D]; for lack of a backward, nothing is kept for it."""
    batch, _, heads, width = call.q.shape
    call = call.with_operands(aligned(call.q), aligned(call.k), aligned(call.v))
    keys, paging = call.k.shape[1], call.paging
    if paging is not None:
        keys *= paging.table.shape[1]
    splits = _splits(batch, keys, nvrtc.multiprocessors(call.q.device))
    output = torch.empty(splits, batch, heads, width, dtype=torch.float32, device=call.q.device)
    arguments = Arguments(output=output.data_ptr(), splits=splits)
    describe_call(arguments, call)
    if call.bias is not None:
        arguments.bias_batch, arguments.bias_head, _, arguments.bias_key = call.bias.stride()
    if paging is not None:
        arguments.table, arguments.lengths = paging.table.data_ptr(), paging.lengths.data_ptr()
        arguments.pages, arguments.pages_per_sequence = len(call.k), paging.table.shape[1]
    if batch:
        source = read_sources("phi.cuh", "tensor_core.cuh", "scalars.cuh", "decode.cu")
        buffers = min(_WARPS, 2 ** int(math.log2(_SHARED / (4 * heads * width))))
        page = 0 if paging is None else call.k.shape[1]
        layout = {"WARPS": _WARPS, "BUFFERS": buffers, "PAGE": page}
        kernel = load_kernel(source, "decode", macros(call) | layout, call.q.device)
        kernel.launch(splits * batch, _WARPS * 32, arguments, 4 * buffers * heads * width)
    return output_stage.finish(call, output)


def _splits(batch: int, keys: int, multiprocessors: int) -> int:
    """Return how many blocks share the keys of a sequence: as many as run at the same time."""
    at_once = _RESIDENT * multiprocessors
    splits = at_once // max(1, batch)
    if splits < _FEW:  # so many that it does not matter when the last of them ends
        splits = math.ceil(_FEW * at_once / batch)
    return max(1, min(splits, math.ceil(keys / _LEAST)))


def backward(
    call: Call, upstream: Tensor, *, log_sum: Tensor | None, bias_gradient: bool
) -> Gradients:
    """Refuse."""
    raise RuntimeError("decoding has no gradient: run it under torch.no_grad()")


class Arguments(ctypes.Structure):
    """`struct Arguments` of the kernel, field by field."""

    _fields_ = (
        *((name, Tensor4) for name in ("q", "k", "v")),
        ("bias", ctypes.c_void_p),
        *((f"bias_{axis}", ctypes.c_longlong) for axis in ("batch", "head", "key")),
        *((name, ctypes.c_void_p) for name in ("padding", "table", "lengths", "output")),
        *((name, ctypes.c_int) for name in ("batch", "keys", "splits", "batch_per_bias")),
        *((name, ctypes.c_int) for name in ("pages", "pages_per_sequence")),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
    )

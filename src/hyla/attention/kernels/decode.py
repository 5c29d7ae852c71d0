"""Decoding, one query against a cache: the host side of `decode.cu`. No gradients."""

import ctypes
import math

import torch
from torch import Tensor

from hyla.attention.kernels import nvrtc
from hyla.attention.kernels.call import Call, Gradients
from hyla.attention.kernels.formula import read_sources
from hyla.attention.kernels.gradients import needs_gradient
from hyla.attention.kernels.output_stage import finish
from hyla.attention.kernels.tensors import Tensor4, aligned, describe_call, macros, why_unreadable

load_kernel = nvrtc.load_kernel
DEVICES = ("cuda",)
VALUES = ("hidden",)
MAX_HEADS = 64
MAX_WIDTH = 128
MAX_ROW = 4096  # H · D: the outputs that a warp's lanes hold in registers

_WARPS = 8
_ROUND = 64
_FULL = 4 * 132  # blocks that keep a large GPU busy


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
    keys = call.k.shape[1]
    call = call.with_operands(aligned(call.q), aligned(call.k), aligned(call.v))
    splits = max(1, min(math.ceil(_FULL / max(batch, 1)), math.ceil(keys / _ROUND)))
    per_block = max(_ROUND, math.ceil(keys / splits / _ROUND) * _ROUND)
    splits = max(1, math.ceil(keys / per_block))
    output = torch.empty(splits, batch, heads, width, dtype=torch.float32, device=call.q.device)
    arguments = Arguments(output=output.data_ptr(), keys_per_block=per_block)
    describe_call(arguments, call)
    if call.bias is not None:
        arguments.bias_batch, arguments.bias_head, _, arguments.bias_key = call.bias.stride()
    if batch:
        source = read_sources("phi.cuh", "tensor_core.cuh", "scalars.cuh", "decode.cu")
        kernel = load_kernel(source, "decode", {**macros(call), "WARPS": _WARPS}, call.q.device)
        shared = 4 * (heads * (width + 4) + _ROUND * heads + heads * width)
        kernel.launch(splits * batch, _WARPS * 32, arguments, shared)
    if call.formula.output_kind == 0:
        return output.sum(0).to(call.q.dtype).unsqueeze(1)
    return finish(call, output)


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
        ("padding", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("batch", "keys", "keys_per_block", "batch_per_bias")),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
    )

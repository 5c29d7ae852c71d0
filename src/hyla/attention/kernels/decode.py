"""Decoding, one query against a cache: the host side of `decode.cu`. No gradients."""

import ctypes
import math

import torch
from torch import Tensor

from hyla.attention.kernels import nvrtc
from hyla.attention.kernels.formula import Formula, read_sources
from hyla.attention.kernels.gradients import needs_gradient
from hyla.attention.kernels.output_stage import finish
from hyla.attention.kernels.packing import Packing
from hyla.attention.kernels.tensors import KINDS, Tensor4, aligned, tensor4, why_apart

load_kernel = nvrtc.load_kernel
DEVICES = ("cuda",)
VALUES = ("hidden",)
MAX_HEADS = 64
MAX_WIDTH = 128
MAX_ROW = 4096  # H · D: the outputs that a warp's lanes hold in registers

_WARPS = 8
_ROUND = 64
_FULL = 4 * 132  # blocks that keep a large GPU busy


def why_unsupported(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    packing: Packing | None,
    formula: Formula,
) -> str | None:
    """Say why the decoding kernel cannot compute this, or return None if it can."""
    reason = formula.why_unsupported(VALUES)
    if reason is not None:
        return reason
    heads, width = q.shape[2:]
    if q.shape[1] != 1 or packing is not None or multiplier is not None:
        return "it takes one query per sequence and no code multiplier"
    if needs_gradient(q, k, v, bias):
        return "decoding has no gradient"
    if k.shape != v.shape:
        return f"values must be as wide as keys, got k {tuple(k.shape)} and v {tuple(v.shape)}"
    if heads > MAX_HEADS or width > MAX_WIDTH or width % 8 or heads * width > MAX_ROW:
        return (
            f"it takes up to {MAX_HEADS} heads of a size that is a multiple of 8 up to "
            f"{MAX_WIDTH}, and H · D up to {MAX_ROW}, got H = {heads}, D = {width}"
        )
    if q.dtype not in KINDS or not q.dtype == k.dtype == v.dtype:
        return f"it takes bfloat16, float16 or float32, got {q.dtype}"
    if bias is not None and bias.dtype not in (torch.float32, q.dtype):
        return f"bias must be float32 or {q.dtype}, got {bias.dtype}"
    reason = why_apart(q, k, v, bias, padding, kinds=DEVICES)
    if reason is None and q.device.type == "cuda":
        reason = nvrtc.why_unavailable()
    return reason


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: None,
    packing: None,
    formula: Formula,
    *,
    row_factor: Tensor | None = None,
    total_factor: None = None,
) -> Tensor:
    """Return the output [B, 1, H, D]; `row_factor` [Bf, 1] scales it where the formula says so."""
    batch, _, heads, width = q.shape
    keys = k.shape[1]
    q, k, v = (aligned(x) for x in (q, k, v))
    splits = max(1, min(math.ceil(_FULL / max(batch, 1)), math.ceil(keys / _ROUND)))
    per_block = max(_ROUND, math.ceil(keys / splits / _ROUND) * _ROUND)
    splits = max(1, math.ceil(keys / per_block))
    output = torch.empty(splits, batch, heads, width, dtype=torch.float32, device=q.device)
    arguments = Arguments()
    for name, x in (("q", q), ("k", k), ("v", v)):
        setattr(arguments, name, tensor4(x))
    if bias is not None:
        arguments.bias = bias.data_ptr()
        arguments.bias_batch, arguments.bias_head, _, arguments.bias_key = bias.stride()
    arguments.batch_per_bias = max(1, batch // max(1, len(bias))) if bias is not None else 1
    arguments.padding = padding.data_ptr() if padding is not None else None
    arguments.output = output.data_ptr()
    arguments.batch, arguments.keys, arguments.keys_per_block = batch, keys, per_block
    arguments.scale, arguments.eps = formula.scale, formula.eps
    macros = {
        "KIND": KINDS[q.dtype],
        "HEADS": heads,
        "WIDTH": width,
        "WARPS": _WARPS,
        "BIASED": 0 if bias is None else 1 if bias.dtype == torch.float32 else 2,
        "PADDED": int(padding is not None),
        **formula.macros(),
    }
    if batch:
        source = read_sources("phi.cuh", "tensor_core.cuh", "scalars.cuh", "decode.cu")
        kernel = load_kernel(source, "decode", macros, q.device)
        shared = 4 * (heads * (width + 4) + _ROUND * heads + heads * width)
        kernel.launch(splits * batch, _WARPS * 32, arguments, shared)
    if formula.output_kind == 0:
        return output.sum(0).to(q.dtype).unsqueeze(1)
    return finish(output, q.dtype, row_factor, formula)


def backward(*given: object, **options: object) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
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

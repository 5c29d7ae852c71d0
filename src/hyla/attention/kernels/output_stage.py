"""What becomes of a query's output before `W_out`: what the kernels are told of it.

The kernels multiply by the factors of `output.cuh` in the last step of their forward. Here is what
takes a pass of its own: the gradient of the raw output from that of the scaled one, and the end of
decoding, where the keys of a query are shared out over blocks (`output_stage.cu`).
"""

import ctypes
import math
from dataclasses import replace

import torch
from torch import Tensor

from hyla.attention.kernels import nvrtc
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.formula import OUTPUTS, Formula, read_sources
from hyla.attention.kernels.gradients import is_differentiated
from hyla.attention.kernels.tensors import KINDS, fresh

load_kernel = nvrtc.load_kernel

_SOURCES = ("phi.cuh", "tensor_core.cuh", "scalars.cuh", "output.cuh", "output_stage.cu")
_PASSES = {"finish": 0, "gradient": 1}
_THREADS = {"finish": 1024, "gradient": 256}
_MOST_PARTS = 64  # that one block sums as fast as many blocks would


def why_unfit(call: Call) -> str | None:
    """Say why no kernel can scale the output like this, or return None."""
    q, row_factor, formula = call.q, call.row_factor, call.formula
    if formula.output not in OUTPUTS:
        return f"the output stage must be one of {list(OUTPUTS)}, got {formula.output!r}"
    if (row_factor is not None) != (formula.output == "rows"):
        return "row factors belong to the output stage 'rows', and to no other"
    if row_factor is None:
        return None
    batch, queries = q.shape[:2]
    if row_factor.ndim != 2 or row_factor.shape[1] != queries or row_factor.dtype != torch.float32:
        return (
            "row factors must be float32 [Bf, Tq], "
            f"got {row_factor.dtype} {tuple(row_factor.shape)} for {queries} queries"
        )
    if batch and (row_factor.shape[0] == 0 or batch % row_factor.shape[0] != 0):
        return f"the rows of factors ({row_factor.shape[0]}) must divide the batch ({batch})"
    if row_factor.device != q.device:
        return f"row factors must be on the device of q, {q.device}, got {row_factor.device}"
    if is_differentiated(row_factor):
        return "the row factors have no gradient in the kernels"
    return None


class Output(ctypes.Structure):
    """`struct Output` of the sources, field by field."""

    _fields_ = (
        ("row_factor", ctypes.c_void_p),
        ("total_factor", ctypes.c_void_p),
        ("batch_per_factor", ctypes.c_int),
        *((name, ctypes.c_float) for name in ("gain", "eps", "inverse_size")),
    )


def describe(call: Call, total_factor: Tensor | None = None) -> Output:
    """Describe the output stage of a call; the tensors must outlive it."""
    heads, width = call.q.shape[2:]
    output = Output(gain=call.formula.gain, eps=call.formula.output_eps)
    output.inverse_size = 1 / (heads * width)
    output.batch_per_factor = call.sharing(call.row_factor)
    if call.row_factor is not None:
        output.row_factor = call.row_factor.data_ptr()
    if total_factor is not None:
        output.total_factor = total_factor.data_ptr()
    return output


def raw_upstream(
    call: Call, upstream: Tensor, y: Tensor | None, total_factor: Tensor | None
) -> tuple[Call, Tensor]:
    """Turn the gradient of the output [B, Tq, H, D] into that of the raw one.

    Also return the call that is then left to differentiate. A constant gain stays in it: it costs
    the backward nothing. `y` and `total_factor` are the output and what it was multiplied by, for
    "rms" alone.
    """
    if call.formula.output == "plain":
        return call, upstream
    upstream = upstream.contiguous()
    y = None if y is None else y.contiguous()
    result = fresh(upstream)
    arguments = Arguments(upstream=upstream.data_ptr(), result=result.data_ptr())
    arguments.y = None if y is None else y.data_ptr()
    arguments.output = describe(call, total_factor)
    read = [x for x in (upstream, y) if x is not None]
    _launch("gradient", arguments, result, call.formula, read)
    raw = replace(call.formula, output="plain", gain=1.0)
    return replace(call, formula=raw, row_factor=None), result


def raw_upstream_by_torch(
    call: Call, upstream: Tensor, y: Tensor | None, total_factor: Tensor | None
) -> tuple[Call, Tensor]:
    """Do as `raw_upstream` by PyTorch's operations, for tensors anywhere."""
    formula = call.formula
    if y is not None and total_factor is not None:  # "rms"
        unit = y / (formula.gain or 1.0)  # with a gain of 0, the factors are 0 too
        along = (upstream * unit).mean((2, 3), keepdim=True)
        result = total_factor[..., None, None] * (upstream - unit * along)
    elif call.row_factor is not None:
        rows = call.row_factor.repeat_interleave(call.sharing(call.row_factor), dim=0)
        result = upstream * (formula.gain * rows[..., None, None])
    else:
        return call, upstream
    raw = replace(formula, output="plain", gain=1.0)
    return replace(call, formula=raw, row_factor=None), result


def finish(call: Call, parts: Tensor) -> Tensor:
    """Sum the parts [parts, B, H, D] of decoded outputs and scale the sum: [B, 1, H, D]."""
    if len(parts) > _MOST_PARTS:
        parts = parts.sum(0, keepdim=True)
    result = fresh(call.q)
    arguments = Arguments(parts=parts.data_ptr(), result=result.data_ptr())
    arguments.part_count = len(parts)
    arguments.output = describe(call)
    _launch("finish", arguments, result, call.formula, [])
    return result


class Arguments(ctypes.Structure):
    """`struct Arguments` of the kernel, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parts", "upstream", "y", "result")),
        *((name, ctypes.c_int) for name in ("rows", "part_count", "queries")),
        ("output", Output),
    )


def _launch(
    pass_name: str, arguments: Arguments, result: Tensor, formula: Formula, read: list[Tensor]
) -> None:
    batch, queries, heads, width = result.shape
    if batch * queries == 0:
        return
    arguments.rows, arguments.queries = batch * queries, queries
    row = heads * width
    vector = _elements_per_load(row, [*read, result])
    threads = _THREADS[pass_name]
    # Decoding has few rows: a block for each. Many rows keep several loads of a thread going.
    alone = pass_name == "finish"
    lanes = 2 ** math.ceil(math.log2(max(1, row / vector / (1 if alone else 4))))
    lanes = min(lanes, threads)
    macros = {
        "KIND": KINDS[result.dtype],
        "PASS": _PASSES[pass_name],
        "OUTPUT": formula.output_kind,
        "ROW": row,
        "LANES": lanes,
        "THREADS": threads,
        "VECTOR": vector,
    }
    kernel = load_kernel(read_sources(*_SOURCES), "output_stage", macros, result.device)
    blocks = math.ceil(batch * queries / (1 if alone else threads // lanes))
    own = math.ceil(row / vector / lanes) * vector  # numbers of a thread
    floats = threads // 32 + alone * own * threads
    kernel.launch(blocks, threads, arguments, 4 * floats)


def _elements_per_load(row: int, tensors: list[Tensor]) -> int:
    for vector in (4, 2):
        aligned = (x.data_ptr() % (vector * x.element_size()) == 0 for x in tensors)
        if row % vector == 0 and all(aligned):
            return vector
    return 1

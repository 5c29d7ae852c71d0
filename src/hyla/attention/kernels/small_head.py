"""Head-mixing attention for many small heads, fused: the host side of `cuda/small_head*`.

`forward` and `backward` neither check nor differentiate: `why_unsupported` says what they can take,
`ops` registers them with torch.
"""

import ctypes
import math
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from hyla.attention.groups import for_every_head, summed_over_groups
from hyla.attention.kernels import bias_layout, nvrtc, output_stage
from hyla.attention.kernels.call import Call, Gradients
from hyla.attention.kernels.formula import read_sources
from hyla.attention.kernels.output_stage import Output, describe
from hyla.attention.kernels.plans.one_walk import choose_one_walk, shared_bytes
from hyla.attention.kernels.plans.small import (
    WARP,
    HeadOrder,
    Plan,
    choose_plan,
    heads_and_elements_per_load,
)
from hyla.attention.kernels.tensors import fresh

load_kernel = nvrtc.load_kernel
raw_upstream = output_stage.raw_upstream
DEVICES = ("cuda",)
MAX_WIDTH = 16
MAX_ROW = 2048  # H · D: beyond it a lane's share of the heads no longer fits in registers

VALUES = ("hidden", "linear", "residual")
NORMALISATIONS = ("none", "rms_head", "softmax", "softmax+rms_head", "rms_head+softmax")

_PASSES = {"forward": 0, "query": 1, "key": 2, "backward": 3}  # a source each, after these:
_SHARED_SOURCES = (
    *("phi.cuh", "softmax.cuh", "output.cuh"),
    *("small_head.cuh", "small_head_pairs.cuh", "small_head_rms_first.cuh"),
    *("small_head_walk.cuh", "small_head_keys.cuh"),
)


@dataclass(frozen=True)
class Softmax:
    """What the backward of a softmax knows of each query and head, as float32 [B, Tq, H].

    `mean_gradient` is the code's gradient, averaged over the keys by the code itself: the queries'
    pass computes it, the keys' pass needs it.
    """

    log_sum: Tensor
    mean_gradient: Tensor


def why_unsupported(call: Call) -> str | None:
    """Say why the fused small-head kernel cannot compute this, or return None if it can."""
    return why_unfit(call) or call.why_elsewhere(DEVICES)


def why_unfit(call: Call) -> str | None:
    """Say why no kernel for small heads can compute this, wherever it runs."""
    q, k, v, bias = call.q, call.k, call.v, call.bias
    reason = call.formula.why_unsupported(VALUES, NORMALISATIONS)
    if reason is not None:
        return reason
    if call.packing is not None:
        return "packed sequences are for heads larger than 16"
    reason = call.why_malformed()
    if reason is not None:
        return reason
    (batch, queries, heads, width), keys = q.shape, k.shape[1]
    if heads < 1 or width < 1 or width > MAX_WIDTH or heads * width > MAX_ROW:
        return (
            f"it takes head sizes up to {MAX_WIDTH} and H · D up to {MAX_ROW}, "
            f"got H = {heads}, D = {width}"
        )
    if batch * max(queries, keys) >= 2**31:
        return f"it takes fewer than 2^31 tokens in a batch, got {batch} × {max(queries, keys)}"
    if q.dtype not in (torch.float32, torch.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return (
            "q, k and v must all be float32 or all bfloat16, "
            f"got {q.dtype}, {k.dtype} and {v.dtype}"
        )
    if bias is not None and bias.dtype not in (torch.float32, torch.bfloat16):
        return f"bias must be float32 or bfloat16, got {bias.dtype}"
    return None


# ------------------------------------------------------------------ the two directions


def forward(
    call: Call, *, total_factor: Tensor | None = None, log_sum: Tensor | None = None
) -> Tensor:
    """Return the output [B, Tq, H, D]."""
    call = _as_read(_with_own_keys(call))
    plan = choose_plan("forward", call.q)
    output = fresh(call.q)
    arguments = _arguments(call)
    arguments.output = describe(call, total_factor)
    if log_sum is not None:
        arguments.log_sum = log_sum.data_ptr()
    _launch("forward", plan, call, arguments, first=output)
    return output


def backward(
    call: Call, upstream: Tensor, *, log_sum: Tensor | None = None, bias_gradient: bool
) -> Gradients:
    """Return the gradients of q, k, v and, if `bias_gradient`, of the bias."""
    key_heads, call = call.k.shape[2], _with_own_keys(call)
    dq, dk, dv, dbias = _gradients(call, upstream, log_sum=log_sum, bias_gradient=bias_gradient)
    return dq, summed_over_groups(dk, key_heads), summed_over_groups(dv, key_heads), dbias


def _gradients(
    call: Call, upstream: Tensor, *, log_sum: Tensor | None, bias_gradient: bool
) -> Gradients:
    plan = choose_one_walk(call, nvrtc.shared_memory(call.q.device))
    if plan is not None:
        options = {"log_sum": log_sum, "bias_gradient": bias_gradient}
        return gradients_in_one_walk(call, upstream, plan=plan, **options)
    softmax = None
    if log_sum is not None:
        softmax = Softmax(log_sum.contiguous(), fresh(log_sum, torch.float32))
    dq, dbias = query_gradient(call, upstream, bias_gradient=bias_gradient, softmax=softmax)
    return dq, *key_gradient(call, upstream, softmax=softmax), dbias


def gradients_in_one_walk(
    call: Call,
    upstream: Tensor,
    *,
    log_sum: Tensor | None = None,
    bias_gradient: bool,
    plan: Plan,
) -> Gradients:
    """Return all gradients from one pass, of a plan that `choose_one_walk` returned."""
    call, upstream = _as_read(call), _with_contiguous_heads(upstream)
    dq, dk, dv = fresh(call.q), fresh(call.k), fresh(call.v)
    arguments = _arguments(call)
    arguments.third = dq.data_ptr()
    if log_sum is not None:
        log_sum = log_sum.contiguous()
        arguments.log_sum = log_sum.data_ptr()
    launch = partial(
        _launch, "backward", plan, call, arguments, upstream=upstream, first=dk, second=dv
    )
    if call.bias is None or not bias_gradient:
        launch()
        return dq, dk, dv, None
    order = HeadOrder.of(plan, [call.q, call.k, call.v, upstream])
    slabs = bias_layout.distance_slabs(call, call.bias, order)
    arguments.bias_gradient = slabs.data_ptr()
    launch(mode=bias_layout.EACH)
    return dq, dk, dv, bias_layout.sum_slabs(slabs, call.bias, order)


def query_gradient(
    call: Call, upstream: Tensor, *, bias_gradient: bool, softmax: Softmax | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients that the queries' pass makes: of q and, if wanted, of the bias.

    It fills in what `softmax` lacks.
    """
    call, upstream = _as_read(call), _with_contiguous_heads(upstream)
    plan = choose_plan("query", call.q)
    dq = fresh(call.q)
    arguments = _arguments(call, softmax)
    if call.bias is None or not bias_gradient:
        _launch("query", plan, call, arguments, upstream=upstream, first=dq)
        return dq, None
    order = HeadOrder.of(plan, [call.q, call.k, call.v, upstream])
    mode, slabs = bias_layout.gradient_slabs(call, call.bias, order, plan)
    arguments.bias_gradient = slabs.data_ptr()
    _launch("query", plan, call, arguments, upstream=upstream, first=dq, mode=mode)
    return dq, bias_layout.sum_slabs(slabs, call.bias, order)


def key_gradient(
    call: Call, upstream: Tensor, *, softmax: Softmax | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients that the keys' pass makes: of k and v."""
    call, upstream = _as_read(call), _with_contiguous_heads(upstream)
    plan = choose_plan("key", call.k)
    dk, dv = fresh(call.k), fresh(call.v)
    arguments = _arguments(call, softmax)
    _launch("key", plan, call, arguments, upstream=upstream, first=dk, second=dv)
    return dk, dv


def _with_own_keys(call: Call) -> Call:
    """Repeat keys and values that query heads share: such small ones are read as one row."""
    own = (for_every_head(x, call.q.shape[2]) for x in (call.k, call.v))
    return call.with_operands(call.q, *own)


def _as_read(call: Call) -> Call:
    call = call.with_operands(*(_with_contiguous_heads(x) for x in (call.q, call.k, call.v)))
    padding, multiplier = call.padding, call.multiplier
    if padding is None and multiplier is None:
        return call
    if padding is not None:
        padding = padding.contiguous()
    if multiplier is not None:
        multiplier = multiplier.to(torch.float32).contiguous()
    return replace(call, padding=padding, multiplier=multiplier)


def _with_contiguous_heads(x: Tensor) -> Tensor:
    heads, width = x.shape[2:]
    contiguous = (width == 1 or x.stride(3) == 1) and (heads == 1 or x.stride(2) == width)
    return x if contiguous else x.contiguous()


# ------------------------------------------------------------------ the launch


class Arguments(ctypes.Structure):
    """`struct Arguments` of the kernel, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "upstream")),
        *((name, ctypes.c_void_p) for name in ("bias", "padding", "multiplier")),
        *((name, ctypes.c_void_p) for name in ("first", "second", "third", "bias_gradient")),
        *(
            (f"{name}_{axis}", ctypes.c_longlong)
            for name in ("q", "k", "v", "upstream")
            for axis in ("batch", "token")
        ),
        *((name, ctypes.c_longlong) for name in ("bias_batch", "bias_query")),
        *((name, ctypes.c_int) for name in ("batch", "queries", "keys")),
        *((name, ctypes.c_int) for name in ("batch_per_bias", "batch_per_multiplier", "reach")),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("output", Output),
        *((name, ctypes.c_void_p) for name in ("log_sum", "mean_gradient")),
    )


def _arguments(call: Call, softmax: Softmax | None = None) -> Arguments:
    q, k = call.q, call.k
    arguments = Arguments(batch=q.shape[0], queries=q.shape[1], keys=k.shape[1])
    arguments.batch_per_bias = call.sharing(call.bias)
    # The last query sees the last key, whatever their numbers; without causality all see all.
    arguments.reach = k.shape[1] - q.shape[1] if call.formula.causal else k.shape[1]
    arguments.scale, arguments.eps = call.formula.scale, call.formula.eps
    arguments.output = describe(call)
    if softmax is not None:
        arguments.log_sum = softmax.log_sum.data_ptr()
        arguments.mean_gradient = softmax.mean_gradient.data_ptr()
    if call.padding is not None:
        arguments.padding = call.padding.data_ptr()
    if call.multiplier is not None:
        arguments.multiplier = call.multiplier.data_ptr()
        arguments.batch_per_multiplier = call.sharing(call.multiplier)
    return arguments


def _describe_bias(arguments: Arguments, bias: Tensor, order: HeadOrder | None) -> Tensor:
    """Say where biases lie: in what is returned, which must outlive the launch.

    In the order in which lanes take heads, or without one as they are, by distance.
    """
    if order is None:
        natural = bias.to(torch.float32).contiguous()
        arguments.bias, arguments.bias_batch = natural.data_ptr(), natural.stride(0)
        return natural
    ordered = order.apply(bias)
    arguments.bias = ordered.data_ptr()
    arguments.bias_batch = ordered.stride(0)
    if bias.ndim == 4:
        arguments.bias_query = ordered.stride(1)
    else:  # by distance: a query further, a key is one entry nearer to the beginning
        arguments.bias_query = -ordered.stride(1)
        arguments.bias += (arguments.queries - 1) * ordered.stride(1) * ordered.element_size()
    return ordered


def _macros(
    pass_name: str, plan: Plan, call: Call, operands: list[Tensor], mode: int
) -> dict[str, int]:
    formula, (heads, width) = call.formula, call.q.shape[2:]
    pack, vector = heads_and_elements_per_load(heads, plan.lanes, operands)
    return {
        "PASS": _PASSES[pass_name],
        "BF16": int(call.q.dtype == torch.bfloat16),
        "HEADS": heads,
        "WIDTH": width,
        **{name.upper(): int(value) for name, value in asdict(plan).items()},
        "PACK": pack,
        "VECTOR": vector,
        "HIDDEN": int(formula.value in ("hidden", "residual")),
        "RESIDUAL": int(formula.value == "residual"),
        **formula.macros(),
        "BIASED": int(call.bias is not None),
        "BIAS_GRADIENT": mode,
        "MASKED": int(call.may_mask),
        "MULTIPLIED": int(call.multiplier is not None),
        "OUTPUT": formula.output_kind,
    }


def _launch(
    pass_name: str,
    plan: Plan,
    call: Call,
    arguments: Arguments,
    *,
    upstream: Tensor | None = None,
    first: Tensor,
    second: Tensor | None = None,
    mode: int = bias_layout.NONE,
) -> None:
    blocks = _blocks(pass_name, plan, first, arguments.batch_per_bias, mode)
    if blocks == 0:
        return
    operands = {"q": call.q, "k": call.k, "v": call.v}
    if upstream is not None:
        operands["upstream"] = upstream
    for name, x in operands.items():
        setattr(arguments, name, x.data_ptr())
        setattr(arguments, f"{name}_batch", x.stride(0))
        setattr(arguments, f"{name}_token", x.stride(1))
    arguments.first = first.data_ptr()
    arguments.second = second.data_ptr() if second is not None else None
    read = list(operands.values())
    if call.bias is not None:
        order = None if pass_name == "backward" else HeadOrder.of(plan, read)
        read.append(_describe_bias(arguments, call.bias, order))
    macros = _macros(pass_name, plan, call, read[: len(operands)], mode)
    source = read_sources(*_SHARED_SOURCES, f"small_head_{pass_name}.cu")
    kernel = load_kernel(source, "small_head", macros, first.device)
    shared = shared_bytes(plan, call) if pass_name == "backward" else 0
    kernel.launch(blocks, plan.threads, arguments, shared)


def _blocks(pass_name: str, plan: Plan, own: Tensor, shared_by: int, mode: int) -> int:
    """Count the blocks of a pass whose teams own these tokens [B, T, H, D]."""
    batch, tokens = own.shape[:2]
    tiles = math.ceil(tokens / plan.rows)
    if pass_name == "backward":
        return batch
    if mode in (bias_layout.PARTIAL, bias_layout.ATOMIC):
        warps = batch // shared_by * math.ceil(shared_by * plan.lanes / WARP) * tiles
        return math.ceil(warps * WARP / plan.threads)
    return math.ceil(batch * tiles * plan.lanes / plan.threads)

"""Head-mixing attention for large heads: the host side of `large_head*.cu`.

There are two sources, one for tensor cores and one in plain float32 arithmetic; each pass takes
the first of their plans that the dtype, the device and its shared memory allow. What a softmax
needs of whole rows comes from PyTorch's flash attention where that knows it, else from passes of
our own.

With a `Packing`, q, k and v are [1, tokens, H, D]. `forward` and `backward` neither check nor
differentiate: `why_unsupported` says what they can take, `ops` registers them with torch.
"""

import ctypes
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention.groups import for_every_head, summed_over_groups
from hyla.attention.kernels import ELSEWHERE, nvrtc, output_stage, softmax_rows
from hyla.attention.kernels.call import Call, Gradients
from hyla.attention.kernels.formula import NORMALISATIONS, read_sources
from hyla.attention.kernels.gradients import needs_gradient
from hyla.attention.kernels.output_stage import Output, describe
from hyla.attention.kernels.plans.large import (
    MAX_HEADS,
    MAX_WIDTH,
    Plan,
    choose_plan,
    takes_plain,
    why_too_large,
)
from hyla.attention.kernels.tensors import (
    Tensor4,
    aligned,
    describe_call,
    fresh,
    macros,
    tensor4,
    why_unreadable,
)

load_kernel = nvrtc.load_kernel
raw_upstream = output_stage.raw_upstream
DEVICES = ("cuda",)
VALUES = ("hidden", "linear")

_RMS_FIRST = "rms_head+softmax"
_SOFTMAXES = ("softmax", "softmax+rms_head", _RMS_FIRST)
_PASSES = {"forward": 0, "query": 1, "key": 2, "sums": 3, "delta": 4}
_BACKWARD = ("query", "key")
_BIAS_GRADIENT_NONE, _BIAS_GRADIENT_STORE, _BIAS_GRADIENT_ATOMIC = range(3)


def why_unsupported(call: Call) -> str | None:
    """Say why the fused large-head kernel cannot compute this, or return None if it can."""
    reason = call.formula.why_unsupported(VALUES, (*NORMALISATIONS, *_SOFTMAXES))
    if reason is not None:
        return reason
    heads, width = call.q.shape[2:]
    if heads > MAX_HEADS or width > MAX_WIDTH:
        return (
            f"it takes up to {MAX_HEADS} heads of size up to {MAX_WIDTH}, "
            f"got H = {heads}, D = {width}"
        )
    masked = call.bias is not None or call.padding is not None
    if call.packing is not None and masked:
        return "packed sequences take neither bias nor padding"
    if call.packing is not None and call.multiplier is not None:
        return "packed sequences take no code multiplier (attention dropout)"
    reason = why_unreadable(call, DEVICES)
    if reason is not None and not reason.startswith(ELSEWHERE):
        return reason
    return why_too_large(call.q, _passes(call), _products(call)) or reason


def name_by_speed(call: Call) -> str:
    """Name the kernel that computes a call which is supported: whatever has a speed of its own."""
    if call.multiplier is not None:
        return "large_head_plain_dropout"
    plain = "_plain" if takes_plain(call.q, _passes(call), _products(call)) else ""
    return f"large_head{plain}_softmax" if _sums_rows(call) else f"large_head{plain}"


def _sums_rows(call: Call) -> bool:
    """Say whether passes of our own make what a softmax needs of whole rows."""
    return call.formula.has_softmax and not _rows_by_flash(call)


def _rows_by_flash(call: Call) -> bool:
    """Say whether flash attention makes them: of raw scores, without masks, beside tensor cores."""
    masked = call.bias is not None or call.padding is not None or call.packing is not None
    return (
        call.formula.value == "hidden"
        and call.multiplier is None
        and call.formula.normalisation != _RMS_FIRST
        and not masked
        and softmax_rows.known(call.q, call.k, causal=call.formula.causal)
        and not takes_plain(call.q, ("forward", *_BACKWARD), "hidden")
    )


def _products(call: Call) -> str | None:
    """Name the value network whose passes on tensor cores a call can take, if they fit.

    The passes of a softmax read each other's rows: all take tensor cores, or none does.
    """
    formula = call.formula
    if call.multiplier is not None:
        return None
    if not _sums_rows(call):
        return formula.value
    known = (formula.normalisation, formula.value) == (_RMS_FIRST, "hidden") and call.bias is None
    passes = ("sums", "forward", "delta", *_BACKWARD)
    return "hidden" if known and not takes_plain(call.q, passes, "hidden") else None


def _passes(call: Call) -> tuple[str, ...]:
    """Name the passes that will run."""
    own = _sums_rows(call)
    passes = ("sums", "forward") if own else ("forward",)
    if not needs_gradient(call.q, call.k, call.v, call.bias):
        return passes
    return (*passes, "delta", *_BACKWARD) if own else (*passes, *_BACKWARD)


# ------------------------------------------------------------------ the two directions


def forward(
    call: Call,
    *,
    total_factor: Tensor | None = None,
    log_sum: Tensor | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """Return the output, shaped like q."""
    width, stage = call.q.shape[-1], describe(call, total_factor)
    own_sums, products = _sums_rows(call), _products(call)
    plan = plan or choose_plan("forward", call.q, products)
    call = _prepared(call, plan)
    output = fresh(call.q)
    arguments = _arguments(call)
    arguments.first, arguments.output = output.data_ptr(), stage
    if log_sum is not None:
        arguments.log_sum = log_sum.data_ptr()
    if own_sums:
        _launch("sums", choose_plan("sums", call.q, products), call, arguments)
    elif log_sum is not None:
        scale, causal = call.formula.scale, call.formula.causal
        keys = for_every_head(call.k, call.q.shape[2])
        log_sum.copy_(softmax_rows.log_sums(call.q, keys, causal=causal, scale=scale))
    _launch("forward", plan, call, arguments)
    return _trimmed(output, width)


def backward(
    call: Call, upstream: Tensor, *, log_sum: Tensor | None = None, bias_gradient: bool
) -> Gradients:
    """Return the gradients of q, k, v and, if `bias_gradient`, of the bias.

    Unless in a fixed order, the gradient of q is added up atomically, which saves a second pass.
    Of keys that query heads share, the pass makes a gradient for each; these are summed here.
    """
    width = call.q.shape[-1]
    own_sums, products = _sums_rows(call), _products(call)
    key_plan, query_plan = (choose_plan(name, call.q, products) for name in ("key", "query"))
    upstream = _loadable(upstream, key_plan, query_plan)
    call = _prepared(call, key_plan, query_plan)
    q, bias = call.q, call.bias
    arguments = _arguments(call)
    arguments.upstream = tensor4(upstream)
    mode, slabs = _BIAS_GRADIENT_NONE, None
    if bias is not None and bias_gradient:
        mode, slabs = _bias_gradient_slabs(bias, len(q), call.in_fixed_order)
        arguments.bias_gradient = slabs.data_ptr()
        arguments.batch_per_slab = call.sharing(slabs)
    row_sums = None
    if log_sum is not None:
        log_sum = log_sum.contiguous()  # vmap may have folded it
        row_sums = torch.zeros(log_sum.shape, dtype=torch.float32, device=q.device)
        arguments.log_sum, arguments.row_sums = log_sum.data_ptr(), row_sums.data_ptr()
    if own_sums:  # and then all of the gradient
        _launch("delta", choose_plan("delta", q, products), call, arguments)
    own = (*call.k.shape[:2], *q.shape[2:])  # of every query head
    dk, dv = (torch.empty(own, dtype=q.dtype, device=q.device) for _ in "kv")
    arguments.first, arguments.second = dk.data_ptr(), dv.data_ptr()
    if call.in_fixed_order:
        _launch("key", key_plan, call, arguments, mode=mode)
        dq = fresh(q)
        arguments.first = dq.data_ptr()
        _launch("query", query_plan, call, arguments)
    else:
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        arguments.query_gradient = dq.data_ptr()
        _launch("key", key_plan, call, arguments, mode=mode, adds=True)
    if log_sum is not None and row_sums is not None and not own_sums:
        rest = softmax_rows.rest_of_gradients(
            *(q, for_every_head(call.k, q.shape[2]), log_sum, row_sums),
            causal=call.formula.causal,
            scale=call.formula.scale,
            deterministic=call.in_fixed_order,
        )
        dq += rest[0]
        dk += rest[1]
    dq = dq.to(q.dtype)
    dbias = None
    if bias is not None and slabs is not None:
        shared = len(slabs) // max(1, len(bias))
        dbias = slabs.unflatten(0, (len(bias), shared)).sum(1).to(bias.dtype)
    dk, dv = (summed_over_groups(x, call.k.shape[2]) for x in (dk, dv))
    return _trimmed(dq, width), _trimmed(dk, width), _trimmed(dv, width), dbias


def _bias_gradient_slabs(bias: Tensor, batch: int, deterministic: bool) -> tuple[int, Tensor]:
    """Choose how bias gradients are gathered, and allocate [slabs, H, Tq, Tk]."""
    slabs = batch if deterministic or len(bias) == batch else len(bias)
    mode = _BIAS_GRADIENT_STORE if slabs == batch else _BIAS_GRADIENT_ATOMIC
    shape = (slabs, *bias.shape[1:])
    return mode, torch.zeros(shape, dtype=torch.float32, device=bias.device)


# ------------------------------------------------------------------ operands a pass can load


def _prepared(call: Call, *plans: Plan) -> Call:
    call = call.with_operands(*(_loadable(x, *plans) for x in (call.q, call.k, call.v)))
    if call.multiplier is None:
        return call
    return dataclasses.replace(call, multiplier=call.multiplier.to(torch.float32).contiguous())


def _loadable(x: Tensor, *plans: Plan) -> Tensor:
    """Make heads as wide as the plans need, and loadable in pieces of 16 bytes."""
    missing = max(plan.padded(x.shape[-1]) for plan in plans) - x.shape[-1]
    x = F.pad(x, (0, missing)) if missing else x
    if any(plan.contiguous_heads for plan in plans) and x.stride(2) != x.shape[3]:
        x = x.contiguous()
    return aligned(x)


def _trimmed(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else x[..., :width].contiguous()


# ------------------------------------------------------------------ the launch


class Arguments(ctypes.Structure):
    """`struct Arguments` of the kernel, field by field."""

    _fields_ = (
        *((name, Tensor4) for name in ("q", "k", "v", "upstream")),
        ("bias", ctypes.c_void_p),
        *((f"bias_{axis}", ctypes.c_longlong) for axis in ("batch", "head", "query", "key")),
        *((name, ctypes.c_void_p) for name in ("padding", "query_starts", "key_starts")),
        *((name, ctypes.c_void_p) for name in ("first", "second")),
        *((name, ctypes.c_void_p) for name in ("query_gradient", "bias_gradient")),
        *((name, ctypes.c_int) for name in ("batch", "queries", "keys")),
        *((name, ctypes.c_int) for name in ("batch_per_bias", "batch_per_slab", "causal")),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("output", Output),
        *((name, ctypes.c_void_p) for name in ("log_sum", "row_sums", "multiplier")),
        ("batch_per_multiplier", ctypes.c_int),
    )


def _arguments(call: Call) -> Arguments:
    arguments = Arguments(queries=call.q.shape[1], batch_per_slab=1)
    describe_call(arguments, call)
    if call.bias is not None:
        axes = ("batch", "head", "query", "key")
        for axis, stride in zip(axes, call.bias.stride(), strict=True):
            setattr(arguments, f"bias_{axis}", stride)
    if call.multiplier is not None:
        arguments.multiplier = call.multiplier.data_ptr()
        arguments.batch_per_multiplier = call.sharing(call.multiplier)
    packing = call.packing
    if packing is not None:
        arguments.query_starts = packing.query_starts.data_ptr()
        arguments.key_starts = packing.key_starts.data_ptr()
        arguments.batch = len(packing.query_starts) - 1
        arguments.queries, arguments.keys = packing.longest_query, packing.longest_key
    arguments.causal = int(call.formula.causal)
    arguments.output = describe(call)
    return arguments


def _launch(
    pass_name: str,
    plan: Plan,
    call: Call,
    arguments: Arguments,
    *,
    mode: int = _BIAS_GRADIENT_NONE,
    adds: bool = False,
) -> None:
    own, tile = (
        (arguments.keys, plan.keys) if pass_name == "key" else (arguments.queries, plan.queries)
    )
    blocks = arguments.batch * math.ceil(own / tile) * plan.split
    if blocks == 0:
        return
    heads, width = call.q.shape[2:]
    definitions = {
        **macros(call),
        "PASS": _PASSES[pass_name],
        "MULTIPLIED": int(call.multiplier is not None),
        "HIDDEN": int(call.formula.value == "hidden"),
        **{name.upper(): int(value) for name, value in dataclasses.asdict(plan).items()},
        "ADDS_QUERY_GRADIENT": int(adds),
        "BIAS_GRADIENT": mode,
        "OUTPUT": call.formula.output_kind,
    }
    source = read_sources(*plan.sources(pass_name))
    kernel = load_kernel(source, "large_head", definitions, call.q.device)
    shared_bytes = plan.shared_bytes(pass_name, heads, width)
    kernel.launch(blocks, plan.warps * 32, arguments, shared_bytes)

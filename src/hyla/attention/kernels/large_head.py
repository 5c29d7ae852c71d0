"""Head-mixing attention for large heads: the host side of `large_head*.cu`.

There are two sources, one for tensor cores and one in plain float32 arithmetic; each pass takes
the first of their plans that the dtype, the device and its shared memory allow.

`forward` and `backward` take q, k, v as [B, T, H, D] (with a `Packing`, as [1, tokens, H, D]) and
a bias as [Bb, H, Tq, Tk], where each run of B / Bb consecutive batch elements shares one bias.
They neither check nor differentiate: `why_unsupported` says what they can take, `ops` registers
them with torch.
"""

import ctypes
import dataclasses
import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention.kernels import nvrtc, plain_plan, softmax_rows, tensor_core_plan
from hyla.attention.kernels.formula import NORMALISATIONS, Formula, read_sources
from hyla.attention.kernels.gradients import needs_gradient
from hyla.attention.kernels.output_stage import Output, describe
from hyla.attention.kernels.packing import Packing
from hyla.attention.kernels.plain_plan import PlainPlan
from hyla.attention.kernels.tensor_core_plan import TensorCorePlan
from hyla.attention.kernels.tensors import KINDS, Tensor4, aligned, tensor4, why_apart

load_kernel = nvrtc.load_kernel
DEVICES = ("cuda",)
VALUES = ("hidden",)
MAX_HEADS = 64
MAX_WIDTH = 128

Plan = TensorCorePlan | PlainPlan

_PASSES = {"forward": 0, "query": 1, "key": 2}
_BIAS_GRADIENT_NONE, _BIAS_GRADIENT_STORE, _BIAS_GRADIENT_ATOMIC = range(3)
_RESERVED = 1024  # bytes of shared memory that the driver keeps in each block


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
    """Say why the fused large-head kernel cannot compute this, or return None if it can.

    Looks at shapes, dtypes, devices and names only, never at what the tensors hold.
    """
    reason = formula.why_unsupported(VALUES, (*NORMALISATIONS, "softmax"))
    if reason is not None:
        return reason
    if multiplier is not None:
        return "a code multiplier (attention dropout) is for heads up to 16"
    heads, width = q.shape[2:]
    if k.shape != v.shape:
        return f"values must be as wide as keys, got k {tuple(k.shape)} and v {tuple(v.shape)}"
    if heads > MAX_HEADS or width > MAX_WIDTH:
        return (
            f"it takes up to {MAX_HEADS} heads of size up to {MAX_WIDTH}, "
            f"got H = {heads}, D = {width}"
        )
    if q.dtype not in KINDS or not q.dtype == k.dtype == v.dtype:
        return f"it takes bfloat16, float16 or float32, got {q.dtype}"
    if packing is not None and not (bias is None and padding is None):
        return "packed sequences take neither bias nor padding"
    if bias is not None and bias.dtype not in (torch.float32, q.dtype):
        return f"bias must be float32 or {q.dtype}, got {bias.dtype}"
    reason = why_apart(q, k, v, bias, padding, kinds=DEVICES)
    if reason is None and q.device.type == "cuda":
        reason = nvrtc.why_unavailable()
    if reason is not None:
        return reason
    reason = _why_too_large(*_problem(q, k, v, bias))
    if reason is not None or formula.normalisation != "softmax":
        return reason
    if needs_plain_arithmetic(q, k, v, bias):
        return "a softmax is for tensor cores: bfloat16 or float16, Hopper or newer, smaller heads"
    masked = bias is not None or padding is not None or packing is not None
    return softmax_rows.why_unsupported(q, k, causal=formula.causal, masked=masked)


def needs_plain_arithmetic(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> bool:
    """Say whether some pass of a call that is supported cannot take tensor cores."""
    return _takes_plain(*_problem(q, k, v, bias))


def _problem(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
) -> tuple[tuple[str, ...], int, int, torch.dtype, str, int | None]:
    """Name the passes that will run, and what their plans depend on, all constants."""
    passes = ("forward", "query", "key") if needs_gradient(q, k, v, bias) else ("forward",)
    heads, width = _settled(q.shape[2], MAX_HEADS), _settled(q.shape[3], MAX_WIDTH)
    return passes, heads, width, q.dtype, q.device.type, q.device.index


def _settled(size: int, largest: int) -> int:
    """Return `size` as a constant, also where a compiler keeps it symbolic."""
    for constant in range(1, largest + 1):
        if constant == size:
            return constant
    return size


@torch.compiler.assume_constant_result
def _why_too_large(
    passes: tuple[str, ...],
    heads: int,
    width: int,
    dtype: torch.dtype,
    kind: str,
    index: int | None,
) -> str | None:
    device = torch.device(kind if index is None else f"{kind}:{index}")
    if capability(device) < plain_plan.CAPABILITY:
        return "it needs compute capability 8.0 (Ampere) or newer"
    for name in passes:
        if _first_plan(name, heads, _padded(width), dtype, device) is None:
            return f"H = {heads} heads of D = {width} do not fit on a multiprocessor"
    return None


@torch.compiler.assume_constant_result
def _takes_plain(
    passes: tuple[str, ...],
    heads: int,
    width: int,
    dtype: torch.dtype,
    kind: str,
    index: int | None,
) -> bool:
    device = torch.device(kind if index is None else f"{kind}:{index}")
    plans = (_first_plan(name, heads, _padded(width), dtype, device) for name in passes)
    return any(isinstance(plan, PlainPlan) for plan in plans)


# ------------------------------------------------------------------ the two directions


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: None,
    packing: Packing | None,
    formula: Formula,
    *,
    row_factor: Tensor | None = None,
    total_factor: Tensor | None = None,
    log_sum: Tensor | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """Return the output, shaped like q.

    `row_factor` [Bf, Tq] scales it where the formula says so. `total_factor` [B, Tq] receives
    what it was multiplied by where that depends on the output itself. `log_sum` [B, Tq, H]
    receives the logarithms of a softmax's sums.
    """
    width = q.shape[-1]
    plan = plan or choose_plan("forward", q)
    stage = describe(q.shape, formula, row_factor, total_factor)
    q, k, v = (_prepared(x, plan) for x in (q, k, v))
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    arguments = _arguments(q, k, v, bias, padding, packing, formula)
    arguments.first, arguments.output = output.data_ptr(), stage
    if log_sum is not None:
        log_sum.copy_(softmax_rows.log_sums(q, k, causal=formula.causal, scale=formula.scale))
        arguments.log_sum = log_sum.data_ptr()
    _launch("forward", plan, formula, arguments, q, bias, padding)
    return _trimmed(output, width)


def backward(
    upstream: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: None,
    packing: Packing | None,
    formula: Formula,
    *,
    bias_gradient: bool,
    deterministic: bool,
    log_sum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and, if `bias_gradient`, of the bias.

    `upstream` is the gradient of the raw output but for a constant gain (`raw_upstream`), `log_sum`
    what the forward left of a softmax.
    Unless `deterministic`, the gradient of q is added up atomically, which saves a second pass.
    """
    width = q.shape[-1]
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    key_plan, query_plan = choose_plan("key", q), choose_plan("query", q)
    upstream, q, k, v = (_prepared(x, key_plan, query_plan) for x in (upstream, q, k, v))
    arguments = _arguments(q, k, v, bias, padding, packing, formula, upstream)
    mode, slabs = _BIAS_GRADIENT_NONE, None
    if bias is not None and bias_gradient:
        mode, slabs = _bias_gradient_slabs(bias, len(q), deterministic)
        arguments.bias_gradient = slabs.data_ptr()
        arguments.batch_per_slab = max(1, len(q) // max(1, len(slabs)))
    row_sums = None
    if log_sum is not None:
        log_sum = log_sum.contiguous()  # vmap may have folded it
        row_sums = torch.zeros(log_sum.shape, dtype=torch.float32, device=q.device)
        arguments.log_sum, arguments.row_sums = log_sum.data_ptr(), row_sums.data_ptr()
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    arguments.first, arguments.second = dk.data_ptr(), dv.data_ptr()
    launch = functools.partial(_launch, formula=formula, q=q, bias=bias, padding=padding)
    if deterministic:
        launch("key", key_plan, arguments=arguments, mode=mode)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        arguments.first = dq.data_ptr()
        launch("query", query_plan, arguments=arguments)
    else:
        sums = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        arguments.query_gradient = sums.data_ptr()
        launch("key", key_plan, arguments=arguments, mode=mode, adds=True)
        dq = sums
    if log_sum is not None and row_sums is not None:
        rest = softmax_rows.rest_of_gradients(
            *(q, k, log_sum, row_sums),
            causal=formula.causal,
            scale=formula.scale,
            deterministic=deterministic,
        )
        dq += rest[0]
        dk += rest[1]
    dq = dq.to(q.dtype)
    dbias = None
    if bias is not None and slabs is not None:
        shared = len(slabs) // max(1, len(bias))
        dbias = slabs.unflatten(0, (len(bias), shared)).sum(1).to(bias.dtype)
    return _trimmed(dq, width), _trimmed(dk, width), _trimmed(dv, width), dbias


def _bias_gradient_slabs(bias: Tensor, batch: int, deterministic: bool) -> tuple[int, Tensor]:
    """Choose how bias gradients are gathered, and allocate [slabs, H, Tq, Tk]."""
    slabs = batch if deterministic or len(bias) == batch else len(bias)
    mode = _BIAS_GRADIENT_STORE if slabs == batch else _BIAS_GRADIENT_ATOMIC
    shape = (slabs, *bias.shape[1:])
    return mode, torch.zeros(shape, dtype=torch.float32, device=bias.device)


# ------------------------------------------------------------------ layout on the machine


def choose_plan(pass_name: str, q: Tensor) -> Plan:
    """Choose the plan of a pass for heads shaped as in q [B, T, H, D]."""
    heads, width = q.shape[2:]
    plan = _first_plan(pass_name, heads, _padded(width), q.dtype, q.device)
    if plan is None:
        raise ValueError(f"no plan of the {pass_name} pass fits H = {heads}, D = {width}")
    return plan


@functools.cache
def _first_plan(
    pass_name: str, heads: int, width: int, dtype: torch.dtype, device: torch.device
) -> Plan | None:
    candidates = plain_plan.plans(pass_name, heads, width)
    if dtype in tensor_core_plan.DTYPES and capability(device) >= tensor_core_plan.CAPABILITY:
        candidates = (*tensor_core_plan.plans(pass_name, heads, width), *candidates)
    room = _shared_memory(device) + _RESERVED
    for plan in candidates:
        if plan.blocks * (plan.shared_bytes(pass_name, heads, width) + _RESERVED) <= room:
            return plan
    return None


def capability(device: torch.device) -> tuple[int, int]:
    """Return a GPU's compute capability; for the host build on a CPU, that of a Hopper GPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 227 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def _padded(width: int) -> int:
    return math.ceil(width / 16) * 16


def _prepared(x: Tensor, *plans: Plan) -> Tensor:
    """Make heads a multiple of 16 wide and loadable in pieces of 16 bytes, as the plans need."""
    missing = _padded(x.shape[-1]) - x.shape[-1]
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
        *((name, ctypes.c_void_p) for name in ("log_sum", "row_sums")),
    )


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    packing: Packing | None,
    formula: Formula,
    upstream: Tensor | None = None,
) -> Arguments:
    arguments = Arguments()
    for name, x in (("q", q), ("k", k), ("v", v), ("upstream", upstream)):
        if x is not None:
            setattr(arguments, name, tensor4(x))
    arguments.batch, arguments.queries, arguments.keys = len(q), q.shape[1], k.shape[1]
    arguments.batch_per_bias = arguments.batch_per_slab = 1
    if bias is not None:
        arguments.bias = bias.data_ptr()
        arguments.batch_per_bias = max(1, len(q) // max(1, len(bias)))
        for axis, stride in zip(("batch", "head", "query", "key"), bias.stride(), strict=True):
            setattr(arguments, f"bias_{axis}", stride)
    if padding is not None:  # contiguous: `ops` sees to it
        arguments.padding = padding.data_ptr()
    if packing is not None:
        arguments.query_starts = packing.query_starts.data_ptr()
        arguments.key_starts = packing.key_starts.data_ptr()
        arguments.batch = len(packing.query_starts) - 1
        arguments.queries, arguments.keys = packing.longest_query, packing.longest_key
    arguments.causal = int(formula.causal)
    arguments.scale, arguments.eps = formula.scale, formula.eps
    arguments.output = describe(q.shape, formula)
    return arguments


def _launch(
    pass_name: str,
    plan: Plan,
    formula: Formula,
    arguments: Arguments,
    q: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    *,
    mode: int = _BIAS_GRADIENT_NONE,
    adds: bool = False,
) -> None:
    own, tile = (
        (arguments.keys, plan.keys) if pass_name == "key" else (arguments.queries, plan.queries)
    )
    blocks = arguments.batch * math.ceil(own / tile)
    if blocks == 0:
        return
    heads, width = q.shape[2:]
    macros = {
        "PASS": _PASSES[pass_name],
        "KIND": KINDS[q.dtype],
        "HEADS": heads,
        "WIDTH": width,
        **{name.upper(): value for name, value in dataclasses.asdict(plan).items()},
        "BIASED": 0 if bias is None else 1 if bias.dtype == torch.float32 else 2,
        "PADDED": int(padding is not None),
        "ADDS_QUERY_GRADIENT": int(adds),
        "BIAS_GRADIENT": mode,
        "OUTPUT": formula.output_kind,
        **formula.macros(),
    }
    source = read_sources(*plan.sources(pass_name))
    kernel = load_kernel(source, "large_head", macros, q.device)
    shared_bytes = plan.shared_bytes(pass_name, heads, width)
    kernel.launch(blocks, plan.warps * 32, arguments, shared_bytes)

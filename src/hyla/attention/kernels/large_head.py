"""Head-mixing attention for large heads on tensor cores: the host side of `large_head*.cu*`.

`forward` and `backward` take q, k, v as [B, T, H, D] (with a `Packing`, as [1, tokens, H, D]) and
a bias as [Bb, H, Tq, Tk], where each run of B / Bb consecutive batch elements shares one bias.
They neither check nor differentiate: `why_unsupported` says what they can take, `ops` registers
them with torch.
"""

import ctypes
import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention.kernels import nvrtc
from hyla.attention.kernels.formula import Formula, read_sources
from hyla.attention.kernels.gradients import needs_gradient
from hyla.attention.kernels.packing import Packing
from hyla.attention.kernels.tensors import Tensor4, aligned, tensor4, why_apart

load_kernel = nvrtc.load_kernel
DEVICES = ("cuda",)
VALUES = ("hidden",)
DTYPES = (torch.bfloat16, torch.float16)
MAX_HEADS = 32
MAX_WIDTH = 128

_COMMON = ("phi.cuh", "tensor_core.cuh", "large_head.cuh")
_SOURCES = {
    "forward": (*_COMMON, "large_head_forward.cu"),
    "query": (*_COMMON, "large_head_backward.cu"),
    "key": (*_COMMON, "large_head_backward.cu"),
}
_PASSES = {"forward": 0, "query": 1, "key": 2}
_BIAS_GRADIENT_NONE, _BIAS_GRADIENT_STORE, _BIAS_GRADIENT_ATOMIC = range(3)
_RESERVED = 1024  # bytes of shared memory that the driver keeps in each block
_MOST_WARPS = 8  # whose threads have 255 registers each fill a multiprocessor


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one pass is laid out on the machine: a tile of queries × keys, shared by `warps` warps.

    `blocks` is how many blocks must fit on a multiprocessor, which caps the registers of each.
    """

    queries: int
    keys: int
    warps: int
    blocks: int = 1


def why_unsupported(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    packing: Packing | None,
    formula: Formula,
) -> str | None:
    """Say why the fused large-head kernel cannot compute this, or return None if it can.

    Looks at shapes, dtypes, devices and names only, never at what the tensors hold.
    """
    reason = formula.why_unsupported(VALUES)
    if reason is not None:
        return reason
    heads, width = q.shape[2:]
    if k.shape != v.shape:
        return f"values must be as wide as keys, got k {tuple(k.shape)} and v {tuple(v.shape)}"
    if heads > MAX_HEADS or width > MAX_WIDTH:
        return (
            f"it takes up to {MAX_HEADS} heads of size up to {MAX_WIDTH}, "
            f"got H = {heads}, D = {width}"
        )
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"it takes bfloat16 or float16, got {q.dtype}"
    if bias is not None and packing is not None:
        return "packed sequences take no bias"
    if bias is not None and bias.dtype not in (torch.float32, q.dtype):
        return f"bias must be float32 or {q.dtype}, got {bias.dtype}"
    reason = why_apart(q, k, v, bias, padding, kinds=DEVICES)
    if reason is None and q.device.type == "cuda":
        reason = nvrtc.why_unavailable()
    if reason is not None:
        return reason
    heads, width = _settled(heads, MAX_HEADS), _settled(width, MAX_WIDTH)
    differentiated = needs_gradient(q, k, v, bias)
    return _why_too_large(heads, width, differentiated, q.device.type, q.device.index)


def _settled(size: int, largest: int) -> int:
    """Return `size` as a constant, also where a compiler keeps it symbolic."""
    for constant in range(1, largest + 1):
        if constant == size:
            return constant
    return size


@torch.compiler.assume_constant_result
def _why_too_large(
    heads: int, width: int, differentiated: bool, kind: str, index: int | None
) -> str | None:
    device = torch.device(kind if index is None else f"{kind}:{index}")
    if kind == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        return "its matrix instructions need compute capability 9.0 (Hopper) or newer"
    for name in ("forward", "query", "key") if differentiated else ("forward",):
        if not _plans(name, heads, _padded(width), _shared_memory(device)):
            return (
                f"H = {heads} heads of D = {width} do not fit into shared memory (the {name} pass)"
            )
    return None


# ------------------------------------------------------------------ the two directions


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    packing: Packing | None,
    formula: Formula,
    *,
    plan: Plan | None = None,
) -> Tensor:
    """Return the output, shaped like q."""
    width = q.shape[-1]
    q, k, v = (_aligned(x) for x in (q, k, v))
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    arguments = _arguments(q, k, v, bias, padding, packing, formula)
    arguments.first = output.data_ptr()
    plan = plan or choose_plan("forward", q)
    _launch("forward", plan, formula, arguments, q, bias, padding)
    return _trimmed(output, width)


def backward(
    upstream: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    packing: Packing | None,
    formula: Formula,
    *,
    bias_gradient: bool,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and, if `bias_gradient`, of the bias.

    Unless `deterministic`, the gradient of q is added up atomically, which saves a second pass.
    """
    width = q.shape[-1]
    upstream, q, k, v = (_aligned(x) for x in (upstream, q, k, v))
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    arguments = _arguments(q, k, v, bias, padding, packing, formula, upstream)
    mode, slabs = _BIAS_GRADIENT_NONE, None
    if bias is not None and bias_gradient:
        mode, slabs = _bias_gradient_slabs(bias, len(q), deterministic)
        arguments.bias_gradient = slabs.data_ptr()
        arguments.batch_per_slab = max(1, len(q) // max(1, len(slabs)))
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    arguments.first, arguments.second = dk.data_ptr(), dv.data_ptr()
    launch = functools.partial(_launch, formula=formula, q=q, bias=bias, padding=padding)
    if deterministic:
        launch("key", choose_plan("key", q), arguments=arguments, mode=mode)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        arguments.first = dq.data_ptr()
        launch("query", choose_plan("query", q), arguments=arguments)
    else:
        sums = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        arguments.query_gradient = sums.data_ptr()
        launch("key", choose_plan("key", q), arguments=arguments, mode=mode, adds=True)
        dq = sums.to(q.dtype)
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
    plans = _plans(pass_name, heads, _padded(width), _shared_memory(q.device))
    if not plans:
        raise ValueError(f"no plan of the {pass_name} pass fits H = {heads}, D = {width}")
    return plans[0]


@functools.cache
def _plans(pass_name: str, heads: int, width: int, shared_memory: int) -> tuple[Plan, ...]:
    """List the plans that fit, the best first, as measured on an H200 (docs/kernel.md).

    Two small blocks on a multiprocessor hide each other's waits better than a large one does.
    """
    slices = width // 16
    if pass_name == "forward":
        groups_per_warp = 2 if heads <= 16 else 1  # of eight queries: their outputs are registers
        candidates = [
            Plan(
                queries=queries,
                keys=keys,
                warps=queries // 8 * slices // groups_per_warp,
                blocks=blocks,
            )
            for blocks, keys in ((2, 32), (1, 16))
            for queries in (64, 32, 16, 8)
            if queries >= 8 * groups_per_warp
        ]
    else:
        tasks = 2 * slices
        candidates = [
            Plan(queries=8, keys=16, warps=warps, blocks=blocks)
            for warps, blocks in (
                *((tasks // 2, n) for n in (4, 3, 2)),
                (tasks, 1),
                (tasks // 2, 1),
            )
        ]
    return tuple(
        plan
        for plan in candidates
        if plan.blocks * plan.warps <= _MOST_WARPS
        and plan.blocks * (shared_bytes(pass_name, plan, heads, width) + 1024)
        <= shared_memory + 1024
    )


def shared_bytes(pass_name: str, plan: Plan, heads: int, width: int) -> int:
    """Return the size of `struct Memory` of the pass."""
    all_heads = math.ceil(heads / 8) * 8
    head_pitch = width + 8
    token = all_heads * head_pitch + 8
    code_row = plan.keys * (all_heads + (8 if all_heads % 16 == 0 else 0)) + 8
    if pass_name == "forward":
        return 2 * ((plan.queries + 2 * plan.keys) * token + plan.queries * code_row)
    queries = 8 if pass_name == "key" else plan.queries
    tokens = 2 * (2 * plan.keys + 2 * queries) * token
    pairs = 4 * 8 * (plan.keys * (all_heads + 4) + 4)
    squares = 4 * plan.warps * 8 * plan.keys
    hidden = 2 * 8 * (plan.keys * head_pitch + 8)
    scores = 2 * heads * 8 * (plan.keys + 8)
    inverse = 4 * 8 * plan.keys
    return (
        tokens
        + 2 * 8 * code_row
        + inverse
        + max(squares, pairs)
        + pairs
        + max(hidden, scores)
        + hidden
    )


def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 227 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def _padded(width: int) -> int:
    return math.ceil(width / 16) * 16


def _aligned(x: Tensor) -> Tensor:
    """Make heads a multiple of 16 wide and loadable in pieces of 16 bytes."""
    missing = _padded(x.shape[-1]) - x.shape[-1]
    return aligned(F.pad(x, (0, missing)) if missing else x)


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
        "FLOAT16": int(q.dtype == torch.float16),
        "HEADS": heads,
        "WIDTH": width,
        "QUERIES": plan.queries,
        "KEYS": plan.keys,
        "WARPS": plan.warps,
        "BLOCKS": plan.blocks,
        "BIASED": 0 if bias is None else 1 if bias.dtype == torch.float32 else 2,
        "PADDED": int(padding is not None),
        "ADDS_QUERY_GRADIENT": int(adds),
        "BIAS_GRADIENT": mode,
        **formula.macros(),
    }
    kernel = load_kernel(read_sources(*_SOURCES[pass_name]), "large_head", macros, q.device)
    kernel.launch(blocks, plan.warps * 32, arguments, shared_bytes(pass_name, plan, heads, width))

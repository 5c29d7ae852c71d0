"""Head-mixing attention for many small heads, fused: the host side of `small_head.cu`.

`forward` and `backward` take q, k, v as [B, T, H, D] and a bias as [Bb, H, Tq, Tk], where each
run of B / Bb consecutive batch elements shares one bias; likewise a multiplier of the code as
[Bm, Tq, Tk]. They neither check nor differentiate:
`why_unsupported` says what they can take, `ops` registers them with torch.
"""

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention.kernels import nvrtc
from hyla.attention.kernels.formula import Formula, read_sources
from hyla.attention.kernels.output_stage import Output, describe
from hyla.attention.kernels.packing import Packing

load_kernel = nvrtc.load_kernel
DEVICES = ("cuda",)
MAX_WIDTH = 16
MAX_ROW = 2048  # H · D: beyond it a lane's share of the heads no longer fits in registers

VALUES = ("hidden", "linear", "residual")
NORMALISATIONS = ("none", "rms_head", "softmax")

_PASSES = {"forward": 0, "query": 1, "key": 2}
_BIAS_GRADIENT_NONE, _BIAS_GRADIENT_EACH, _BIAS_GRADIENT_PARTIAL, _BIAS_GRADIENT_ATOMIC = range(4)
_WARP = 32

# Rows per team and elements per lane and operand that were fastest for SRAVEN's shapes (H200).
_MEASURED_BEST = {"forward": (4, 16), "query": (4, 8), "key": (2, 8)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one pass is laid out on the machine: it changes the speed and the rounding, no more.

    A team of `lanes` lanes holds the heads of `rows` consecutive tokens. `blocks` is how many
    blocks of `threads` threads must fit on a multiprocessor, which caps the registers of each.
    `prefetch` loads one token ahead.
    """

    lanes: int
    rows: int
    threads: int = 128
    blocks: int = 1
    prefetch: bool = False


@dataclass(frozen=True)
class Softmax:
    """What the backward of a softmax knows of each query and head, as float32 [B, Tq, H].

    `mean_gradient` is the code's gradient, averaged over the keys by the code itself: the queries'
    pass computes it, the keys' pass needs it.
    """

    log_sum: Tensor
    mean_gradient: Tensor


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
    """Say why the fused small-head kernel cannot compute this, or return None if it can.

    Looks at shapes, dtypes, devices and names only, never at what the tensors hold.
    """
    reason = formula.why_unsupported(VALUES, NORMALISATIONS)
    if reason is not None:
        return reason
    if packing is not None:
        return "packed sequences are for heads larger than 16"
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        return "q, k and v must be [B, T, H, D]"
    batch, queries, heads, width = q.shape
    keys = k.shape[1]
    if k.shape != v.shape or (k.shape[0], *k.shape[2:]) != (batch, heads, width):
        return (
            "k and v must be [B, Tk, H, D] with the batch, heads and head size of q, got "
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
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
    if bias is not None:
        if bias.ndim != 4 or bias.shape[1:] != (heads, queries, keys):
            return f"bias must be [Bb, H, Tq, Tk], got {tuple(bias.shape)}"
        if bias.shape[0] == 0 or batch % bias.shape[0] != 0:
            return f"the biases ({bias.shape[0]}) must divide the batch ({batch})"
        if bias.dtype not in (torch.float32, torch.bfloat16):
            return f"bias must be float32 or bfloat16, got {bias.dtype}"
    if padding is not None and (padding.shape != (batch, keys) or padding.dtype != torch.bool):
        return (
            "padding must be a boolean [B, Tk], True where a key may be attended to, "
            f"got {padding.dtype} {tuple(padding.shape)}"
        )
    if multiplier is not None:
        if multiplier.ndim != 3 or multiplier.shape[1:] != (queries, keys):
            return f"the code multiplier must be [Bm, Tq, Tk], got {tuple(multiplier.shape)}"
        if multiplier.shape[0] == 0 or batch % multiplier.shape[0] != 0:
            return f"the multipliers ({multiplier.shape[0]}) must divide the batch ({batch})"
    given = [x for x in (q, k, v, bias, padding, multiplier) if x is not None]
    if any(x.device != q.device for x in given) or q.device.type not in DEVICES:
        devices = ", ".join(sorted({str(x.device) for x in given}))
        return f"all tensors must be on one CUDA device, got {devices}"
    return nvrtc.why_unavailable() if q.device.type == "cuda" else None


# ------------------------------------------------------------------ the two directions


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    packing: None,
    formula: Formula,
    *,
    row_factor: Tensor | None = None,
    total_factor: Tensor | None = None,
    log_sum: Tensor | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """Return the output [B, Tq, H, D].

    `row_factor` [Bf, Tq] scales it where the formula says so. `total_factor` [B, Tq] receives
    what it was multiplied by where that depends on the output itself, and `log_sum` [B, Tq, H],
    float32, the logarithms of a softmax's sums.
    """
    q, k, v = (_with_contiguous_heads(x) for x in (q, k, v))
    padding, multiplier = _as_read(padding), _as_read(multiplier, torch.float32)
    plan = plan or choose_plan("forward", q)
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    arguments = _arguments(q, k, v, bias, padding, multiplier, formula)
    arguments.output = describe(q.shape, formula, row_factor, total_factor)
    if log_sum is not None:
        arguments.log_sum = log_sum.data_ptr()
    _launch("forward", plan, formula, arguments, (q, k, v), bias, first=output)
    return output


def backward(
    upstream: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    packing: None,
    formula: Formula,
    *,
    bias_gradient: bool,
    deterministic: bool,
    log_sum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and, if `bias_gradient`, of the bias.

    `upstream` is the gradient of the raw output but for a constant gain (`raw_upstream`).
    """
    given = (upstream, q, k, v, bias, padding, multiplier, formula)
    softmax = None
    if log_sum is not None:
        like = {"dtype": torch.float32, "device": q.device}
        softmax = Softmax(log_sum.contiguous(), torch.empty(log_sum.shape, **like))
    dq, dbias = query_gradient(
        *given, bias_gradient=bias_gradient, deterministic=deterministic, softmax=softmax
    )
    return dq, *key_gradient(*given, softmax=softmax), dbias


def query_gradient(
    upstream: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    formula: Formula,
    *,
    bias_gradient: bool,
    deterministic: bool,
    softmax: Softmax | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients that the queries' pass makes: of q and, if wanted, of the bias.

    It fills in what `softmax` lacks.
    """
    upstream, q, k, v = (_with_contiguous_heads(x) for x in (upstream, q, k, v))
    padding, multiplier = _as_read(padding), _as_read(multiplier, torch.float32)
    plan = plan or choose_plan("query", q)
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    arguments = _arguments(q, k, v, bias, padding, multiplier, formula, upstream, softmax)
    mode, slabs = _BIAS_GRADIENT_NONE, None
    if bias is not None and bias_gradient:
        mode, slabs = _bias_gradient_slabs(bias, q.shape[0], plan, deterministic)
        arguments.bias_gradient = slabs.data_ptr()
    _launch("query", plan, formula, arguments, (q, k, v, upstream), bias, first=dq, mode=mode)
    if bias is None or slabs is None:
        return dq, None
    return dq, _sum_slabs(slabs, bias)


def key_gradient(
    upstream: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    formula: Formula,
    *,
    softmax: Softmax | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients that the keys' pass makes: of k and v."""
    upstream, q, k, v = (_with_contiguous_heads(x) for x in (upstream, q, k, v))
    padding, multiplier = _as_read(padding), _as_read(multiplier, torch.float32)
    plan = plan or choose_plan("key", k)
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    arguments = _arguments(q, k, v, bias, padding, multiplier, formula, upstream, softmax)
    _launch("key", plan, formula, arguments, (q, k, v, upstream), bias, first=dk, second=dv)
    return dk, dv


# ------------------------------------------------------------------ layout on the machine


def choose_plan(pass_name: str, own: Tensor) -> Plan:
    """Choose the plan of a pass from the shape [B, T, H, D] of the tokens that its teams own."""
    batch, tokens, heads, width = own.shape
    lanes, rows, floats_per_lane = 1, *_MEASURED_BEST[pass_name]
    while 2 * lanes <= min(heads, _WARP) and _lane_floats(heads, width, lanes) > floats_per_lane:
        lanes *= 2
    while rows > 1 and (_lane_floats(heads, width, lanes) * rows > 64 or width * rows > 16):
        rows //= 2

    # A small problem leaves the machine empty: more teams, then larger ones, and loads ahead.
    enough_threads = 32_768
    small = batch * tokens // rows * lanes < enough_threads
    while rows > 1 and batch * tokens // rows * lanes < enough_threads:
        rows //= 2
    while 2 * lanes <= min(heads, _WARP) and batch * tokens * lanes < enough_threads:
        lanes *= 2
    # Four blocks cap a thread at 128 registers: enough for the keys' pass if a lane holds little.
    crowded = pass_name == "key" and _lane_floats(heads, width, lanes) * rows <= 16
    return Plan(
        lanes=lanes,
        rows=rows,
        blocks=4 if crowded else 1,
        prefetch=small or pass_name == "query",
    )


def _lane_floats(heads: int, width: int, lanes: int) -> int:
    return math.ceil(heads / lanes) * width


def _packing(heads: int, lanes: int, operands: tuple[Tensor, ...]) -> tuple[int, int]:
    """Return the heads dealt out together and the elements per load that memory allows."""
    width, item = operands[0].shape[-1], operands[0].element_size()
    vector = 16 // item
    while vector > 1:
        aligned = all(
            x.data_ptr() % (vector * item) == 0 and all(s % vector == 0 for s in x.stride()[:2])
            for x in operands
        )
        for pack in (1, 2, 4, 8) if aligned else ():
            evenly = heads % pack == 0 and (heads // pack % lanes == 0 or heads % lanes != 0)
            if evenly and heads // pack >= lanes and pack * width % vector == 0:
                return pack, vector
        vector //= 2
    return 1, 1


def _as_read(x: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
    return None if x is None else x.to(dtype or x.dtype).contiguous()


def _with_contiguous_heads(x: Tensor) -> Tensor:
    heads, width = x.shape[2:]
    contiguous = (width == 1 or x.stride(3) == 1) and (heads == 1 or x.stride(2) == width)
    return x if contiguous else x.contiguous()


# ------------------------------------------------------------------ bias, as the kernel reads it


def _tile_bias(bias: Tensor, rows: int, *, own_keys: bool) -> Tensor:
    """Rearrange [Bb, H, Tq, Tk] as [Bb, tile, other token, H, row], in float32.

    What a team needs for one step of its walk is then contiguous.
    """
    own_last = bias if own_keys else bias.transpose(2, 3)  # [Bb, H, other, own]
    missing = -own_last.shape[3] % rows
    padded = F.pad(own_last, (0, missing)) if missing else own_last
    tiled = padded.unflatten(3, (-1, rows)).permute(0, 3, 2, 1, 4)
    return tiled.to(torch.float32, memory_format=torch.contiguous_format).contiguous()


def _bias_gradient_slabs(
    bias: Tensor, batch: int, plan: Plan, deterministic: bool
) -> tuple[int, Tensor]:
    """Choose how bias gradients are gathered, and allocate [Bb, parts, tile, key, H, row]."""
    biases, heads, queries, keys = bias.shape
    shared_by, teams = batch // biases, _WARP // plan.lanes
    tail = (math.ceil(queries / plan.rows), keys, heads, plan.rows)
    like = {"dtype": torch.float32, "device": bias.device}
    if shared_by < teams:  # a warp of one tile from several batch elements would be half empty
        return _BIAS_GRADIENT_EACH, torch.empty((biases, shared_by, *tail), **like)
    if deterministic or torch.are_deterministic_algorithms_enabled():
        parts = math.ceil(shared_by / teams)
        return _BIAS_GRADIENT_PARTIAL, torch.empty((biases, parts, *tail), **like)
    return _BIAS_GRADIENT_ATOMIC, torch.zeros((biases, 1, *tail), **like)


def _sum_slabs(slabs: Tensor, bias: Tensor) -> Tensor:
    """Undo the tiling of a bias gradient."""
    summed = slabs.sum(1) if slabs.shape[1] != 1 else slabs.squeeze(1)
    natural = summed.permute(0, 3, 1, 4, 2).flatten(2, 3)  # [Bb, H, Tq and more, Tk]
    return natural[:, :, : bias.shape[2]].to(bias.dtype).contiguous()


# ------------------------------------------------------------------ the launch


class Arguments(ctypes.Structure):
    """`struct Arguments` of the kernel, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "upstream")),
        *((name, ctypes.c_void_p) for name in ("bias", "padding", "multiplier")),
        *((name, ctypes.c_void_p) for name in ("first", "second", "bias_gradient")),
        *(
            (f"{name}_{axis}", ctypes.c_longlong)
            for name in ("q", "k", "v", "upstream")
            for axis in ("batch", "token")
        ),
        *((name, ctypes.c_int) for name in ("batch", "queries", "keys")),
        *((name, ctypes.c_int) for name in ("batch_per_bias", "batch_per_multiplier", "reach")),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("output", Output),
        *((name, ctypes.c_void_p) for name in ("log_sum", "mean_gradient")),
    )


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    formula: Formula,
    upstream: Tensor | None = None,
    softmax: Softmax | None = None,
) -> Arguments:
    arguments = Arguments()
    for name, x in (("q", q), ("k", k), ("v", v), ("upstream", upstream)):
        if x is not None:
            setattr(arguments, name, x.data_ptr())
            setattr(arguments, f"{name}_batch", x.stride(0))
            setattr(arguments, f"{name}_token", x.stride(1))
    arguments.batch, arguments.queries = q.shape[:2]
    arguments.keys = k.shape[1]
    arguments.batch_per_bias = q.shape[0] // bias.shape[0] if bias is not None else 1
    # The last query sees the last key, whatever their numbers; without causality all see all.
    arguments.reach = k.shape[1] - q.shape[1] if formula.causal else k.shape[1]
    arguments.scale, arguments.eps = formula.scale, formula.eps
    arguments.output = describe(q.shape, formula)
    if softmax is not None:
        arguments.log_sum = softmax.log_sum.data_ptr()
        arguments.mean_gradient = softmax.mean_gradient.data_ptr()
    if padding is not None:
        arguments.padding = padding.data_ptr()
    if multiplier is not None:
        arguments.multiplier = multiplier.data_ptr()
        arguments.batch_per_multiplier = q.shape[0] // multiplier.shape[0]
    return arguments


def _macros(
    pass_name: str,
    plan: Plan,
    formula: Formula,
    operands: tuple[Tensor, ...],
    *,
    biased: bool,
    bias_gradient: int,
    multiplied: bool,
) -> Mapping[str, int]:
    heads, width = operands[0].shape[2:]
    pack, vector = _packing(heads, plan.lanes, operands)
    return {
        "PASS": _PASSES[pass_name],
        "BF16": int(operands[0].dtype == torch.bfloat16),
        "HEADS": heads,
        "WIDTH": width,
        "LANES": plan.lanes,
        "ROWS": plan.rows,
        "PACK": pack,
        "VECTOR": vector,
        "THREADS": plan.threads,
        "BLOCKS": plan.blocks,
        "PREFETCH": int(plan.prefetch),
        "HIDDEN": int(formula.value in ("hidden", "residual")),
        "RESIDUAL": int(formula.value == "residual"),
        **formula.macros(),
        "BIASED": int(biased),
        "BIAS_GRADIENT": bias_gradient,
        "MULTIPLIED": int(multiplied),
        "OUTPUT": formula.output_kind,
    }


def _launch(
    pass_name: str,
    plan: Plan,
    formula: Formula,
    arguments: Arguments,
    operands: tuple[Tensor, ...],
    bias: Tensor | None,
    *,
    first: Tensor,
    second: Tensor | None = None,
    mode: int = _BIAS_GRADIENT_NONE,
) -> None:
    batch, tokens = first.shape[:2]
    tiles = math.ceil(tokens / plan.rows)
    if mode in (_BIAS_GRADIENT_PARTIAL, _BIAS_GRADIENT_ATOMIC):
        shared_by = arguments.batch_per_bias
        warps = batch // shared_by * math.ceil(shared_by * plan.lanes / _WARP) * tiles
        blocks = math.ceil(warps * _WARP / plan.threads)
    else:
        blocks = math.ceil(batch * tiles * plan.lanes / plan.threads)
    if blocks == 0:
        return
    arguments.first = first.data_ptr()
    arguments.second = second.data_ptr() if second is not None else None
    tiled_bias = None
    if bias is not None:
        tiled_bias = _tile_bias(bias, plan.rows, own_keys=pass_name == "key")
        arguments.bias = tiled_bias.data_ptr()
    macros = _macros(
        pass_name,
        plan,
        formula,
        operands,
        biased=bias is not None,
        bias_gradient=mode,
        multiplied=arguments.multiplier is not None,
    )
    kernel = load_kernel(
        read_sources("phi.cuh", "output.cuh", "small_head.cu"), "small_head", macros, first.device
    )
    kernel.launch(blocks, plan.threads, arguments)

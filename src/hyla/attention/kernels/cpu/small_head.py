"""Head-mixing attention for small heads on a CPU: the host side of `small_head.cpp`."""

import ctypes
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention.groups import for_every_head, summed_over_groups
from hyla.attention.kernels import small_head
from hyla.attention.kernels.call import Call, Gradients
from hyla.attention.kernels.cpu import compiler
from hyla.attention.kernels.formula import read_sources
from hyla.attention.kernels.output_stage import Output, describe, raw_upstream_by_torch
from hyla.attention.kernels.tensors import fresh

raw_upstream = raw_upstream_by_torch

_LANES = 16  # at most, in a vector
_WORTH_THREADS = 2**18  # numbers multiplied
_MOST_WORKED_ON = 2**26  # bytes of a thread
_MOST_PARTS = 32  # of the sequences that share a bias
_MOST_IN_SLABS = 2**23  # numbers, of one bias's gradient


def why_unsupported(call: Call) -> str | None:
    """Say why the kernel cannot compute this, or return None if it can."""
    reason = small_head.why_unfit(call)
    if reason is not None:
        return reason
    if call.q.dtype != torch.float32:
        return f"it takes float32, got {call.q.dtype}"
    worked_on = _bytes_worked_on(call)
    if worked_on > _MOST_WORKED_ON:
        return (
            f"every thread would take {worked_on / 2**20:,.0f} MiB for the codes of "
            f"{call.k.shape[1]} keys, more than {_MOST_WORKED_ON >> 20}"
        )
    return call.why_elsewhere(("cpu",)) or compiler.why_unavailable()


def _bytes_worked_on(call: Call) -> int:
    """Count what a thread keeps of all keys of a softmax: `pairs` of the source's `Work`."""
    of_pair = 4 * _LANES * (3 * call.q.shape[2] + 1)
    return call.formula.has_softmax * call.k.shape[1] * of_pair


# ------------------------------------------------------------------ the two directions


def forward(
    call: Call, *, total_factor: Tensor | None = None, log_sum: Tensor | None = None
) -> Tensor:
    """Return the output [B, Tq, H, D]."""
    call = _as_read(call)
    output = fresh(call.q)
    arguments, bias = _arguments(call), _BiasAsRead(call)
    bias.describe(arguments)
    arguments.y, arguments.output = output.data_ptr(), describe(call, total_factor)
    if log_sum is not None:
        arguments.log_sum = log_sum.data_ptr()
    _launch("forward", call, arguments)
    return output


def backward(
    call: Call, upstream: Tensor, *, log_sum: Tensor | None = None, bias_gradient: bool
) -> Gradients:
    """Return the gradients of q, k, v and, if `bias_gradient`, of the bias."""
    key_heads, call = call.k.shape[2], _as_read(call)
    dq, dk, dv = fresh(call.q), torch.zeros_like(call.k), torch.zeros_like(call.v)
    upstream = upstream.contiguous()
    arguments, bias = _arguments(call), _BiasAsRead(call)
    bias.describe(arguments)
    slabs = bias.slabs(arguments) if bias_gradient else None
    arguments.upstream = upstream.data_ptr()
    arguments.dq, arguments.dk, arguments.dv = (x.data_ptr() for x in (dq, dk, dv))
    if log_sum is not None:
        log_sum = log_sum.contiguous()
        arguments.log_sum = log_sum.data_ptr()
    _launch("backward", call, arguments)
    dk, dv = (summed_over_groups(x, key_heads) for x in (dk, dv))
    return dq, dk, dv, None if slabs is None else bias.gradient(slabs)


def _as_read(call: Call) -> Call:
    """Repeat keys and values that query heads share, and lay out all but the bias."""
    own = (for_every_head(x, call.q.shape[2]) for x in (call.k, call.v))
    call = call.with_operands(*(x.contiguous() for x in (call.q, *own)))
    multiplier = call.multiplier
    if multiplier is None:
        return call
    return replace(call, multiplier=_queries_last(multiplier.to(torch.float32)))


def _queries_last(x: Tensor) -> Tensor:
    """Turn [..., query, key] into [..., key, query], with room for whole vectors of queries."""
    return F.pad(x.mT, (0, -x.shape[-2] % _LANES)).contiguous()


class _BiasAsRead:
    """A bias whose consecutive numbers are those of consecutive queries, and its gradient.

    Of pairs it is [Bb, H, key, query]; by distance [Bb, H, distance], the longest way back first.
    """

    def __init__(self, call: Call):
        self._given, self._keys = call.bias, call.k.shape[1]
        if call.bias is not None:
            x = call.bias.to(torch.float32)
            self._at = F.pad(x.flip(-1), (0, _LANES)) if x.ndim == 3 else _queries_last(x)

    def describe(self, arguments: "Arguments") -> None:
        if self._given is None:
            return
        by_distance = self._at.ndim == 3
        bias = arguments.bias
        bias.at, bias.group, bias.head = self._at.data_ptr(), *self._at.stride()[:2]
        bias.key = -1 if by_distance else self._at.stride(2)
        bias.first = self._keys - 1 if by_distance else 0

    def slabs(self, arguments: "Arguments") -> Tensor | None:
        """Allocate a gradient for each part of the batch: no two threads add to the same."""
        if self._given is None:
            return None
        arguments.parts = min(arguments.batch_per_bias, _most_parts(self._given))
        slabs = self._at.new_zeros(arguments.parts, *self._at.shape)
        arguments.bias.gradient, arguments.bias.part = slabs.data_ptr(), slabs.stride(0)
        return slabs

    def gradient(self, slabs: Tensor) -> Tensor | None:
        """Return the sum of the slabs in the shape of the bias."""
        if self._given is None:
            return None
        summed = slabs.sum(0)
        if summed.ndim == 3:
            natural = summed[..., : self._given.shape[-1]].flip(-1)
        else:
            natural = summed[..., : self._given.shape[-2]].mT
        return natural.to(self._given.dtype).contiguous()


def _most_parts(bias: Tensor) -> int:
    """Return in how many parts, at most, the sequences that share a bias are worked on and summed.

    They depend on that bias alone, so that a member's gradient is the same bits in every
    population, and with any number of threads.
    """
    of_one = bias.shape[1:].numel()
    return max(1, min(_MOST_PARTS, _MOST_IN_SLABS // max(1, of_one)))


# ------------------------------------------------------------------ the call


class Bias(ctypes.Structure):
    """`struct Bias` of the source, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("at", "gradient")),
        *((name, ctypes.c_long) for name in ("group", "head", "key", "first", "part")),
    )


class Arguments(ctypes.Structure):
    """`struct Arguments` of the source, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "upstream")),
        *((name, ctypes.c_void_p) for name in ("padding", "multiplier")),
        *((name, ctypes.c_void_p) for name in ("y", "dq", "dk", "dv", "log_sum")),
        ("bias", Bias),
        ("output", Output),
        *((name, ctypes.c_long) for name in ("batch", "queries", "keys", "batch_per_bias")),
        *((name, ctypes.c_long) for name in ("batch_per_multiplier", "multiplier_key", "parts")),
        ("reach", ctypes.c_long),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("threads", ctypes.c_int),
    )


def _arguments(call: Call) -> Arguments:
    (batch, queries, heads, width), keys = call.q.shape, call.k.shape[1]
    arguments = Arguments(batch=batch, queries=queries, keys=keys)
    for name in ("q", "k", "v"):
        setattr(arguments, name, getattr(call, name).data_ptr())
    arguments.batch_per_bias = call.sharing(call.bias)
    if call.padding is not None:  # contiguous: `ops` sees to it
        arguments.padding = call.padding.data_ptr()
    if call.multiplier is not None:
        arguments.multiplier = call.multiplier.data_ptr()
        arguments.batch_per_multiplier = call.sharing(call.multiplier)
        arguments.multiplier_key = call.multiplier.shape[2]  # one key has any stride
    arguments.reach = keys - queries if call.formula.causal else keys
    arguments.scale, arguments.eps = call.formula.scale, call.formula.eps
    arguments.output = describe(call)
    work = batch * queries * keys * heads * width
    # All or one: another number of them would end torch's threads, to begin new ones.
    arguments.threads = torch.get_num_threads() if work > _WORTH_THREADS else 1
    arguments.parts = arguments.batch_per_bias  # each sequence by itself
    return arguments


def _launch(direction: str, call: Call, arguments: Arguments) -> None:
    if call.q.numel() == 0:
        return
    formula, (heads, width) = call.formula, call.q.shape[2:]
    macros = {
        "HEADS": heads,
        "WIDTH": width,
        "HIDDEN": int(formula.value in ("hidden", "residual")),
        "RESIDUAL": int(formula.value == "residual"),
        **formula.macros(),
        "BIASED": int(call.bias is not None),
        "BIAS_MASKS": int(call.bias is not None and call.bias_masks),
        "MASKED": int(call.may_mask),
        "MULTIPLIED": int(call.multiplier is not None),
        "OUTPUT": formula.output_kind,
    }
    getattr(_library(*macros.items()), direction)(ctypes.byref(arguments))


@lru_cache  # the sources are long, to put together and to look up
def _library(*macros: tuple[str, int]) -> ctypes.CDLL:
    shared = read_sources("phi.cuh", "output.cuh")
    machine, kernel = (read_sources(name, folder="cpu") for name in ("machine.h", "small_head.cpp"))
    return compiler.load_library(machine + shared + kernel, dict(macros))

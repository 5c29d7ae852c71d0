"""Calls as the kernels for large heads and for decoding read them, and fresh tensors for all."""

import ctypes

import torch
from torch import Tensor

from hyla.attention.kernels.call import Call

KINDS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}  # KIND of the sources


class Tensor4(ctypes.Structure):
    """`struct Tensor4` of the sources: [batch, token, head, d] with d contiguous."""

    _fields_ = (
        ("at", ctypes.c_void_p),
        *((axis, ctypes.c_longlong) for axis in ("batch", "token", "head")),
    )


def tensor4(x: Tensor) -> Tensor4:
    """Describe `x` to a kernel, which must not outlive it."""
    return Tensor4(x.data_ptr(), *x.stride()[:3])


def aligned(x: Tensor) -> Tensor:
    """Return `x`, or a copy of it, whose heads can be loaded in pieces of 16 bytes."""
    step = 16 // x.element_size()
    loadable = x.stride(-1) == 1 and all(s % step == 0 for s in x.stride()[:-1])
    # Not `contiguous`: that keeps what is contiguous but starts at an odd address.
    good = loadable and x.data_ptr() % 16 == 0
    return x if good else x.clone(memory_format=torch.contiguous_format)


def fresh(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate a contiguous tensor in the shape of `x`."""
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)


def why_unreadable(call: Call, kinds: tuple[str, ...]) -> str | None:
    """Say why a call is not for these kernels on devices of `kinds`, or return None."""
    q, k, v, bias = call.q, call.k, call.v, call.bias
    if k.shape != v.shape:
        return f"values must be as wide as keys, got k {tuple(k.shape)} and v {tuple(v.shape)}"
    reason = call.why_malformed()
    if reason is not None:
        return reason
    if bias is not None and bias.ndim == 3:
        return "biases by distance are for heads up to 16"
    if q.dtype not in KINDS or not q.dtype == k.dtype == v.dtype:
        return f"it takes bfloat16, float16 or float32, got {q.dtype}"
    if bias is not None and bias.dtype not in (torch.float32, q.dtype):
        return f"bias must be float32 or {q.dtype}, got {bias.dtype}"
    return call.why_elsewhere(kinds)


def describe_call(arguments: ctypes.Structure, call: Call) -> None:
    """Fill in what both `struct Arguments` hold of a call, whose tensors must outlive them."""
    for name, x in (("q", call.q), ("k", call.k), ("v", call.v)):
        setattr(arguments, name, tensor4(x))
    arguments.batch, arguments.keys = len(call.q), call.k.shape[1]
    arguments.batch_per_bias = call.sharing(call.bias)
    if call.bias is not None:
        arguments.bias = call.bias.data_ptr()
    if call.padding is not None:  # contiguous: `ops` sees to it
        arguments.padding = call.padding.data_ptr()
    arguments.scale, arguments.eps = call.formula.scale, call.formula.eps


def macros(call: Call) -> dict[str, int]:
    """Return the definitions that both depend on."""
    heads, width = call.q.shape[2:]
    return {
        "KIND": KINDS[call.q.dtype],
        "HEADS": heads,
        "WIDTH": width,
        "SHARED_BY": call.heads_per_key_head,
        "BIASED": 0 if call.bias is None else 1 if call.bias.dtype == torch.float32 else 2,
        "PADDED": int(call.padding is not None),
        **call.formula.macros(),
    }

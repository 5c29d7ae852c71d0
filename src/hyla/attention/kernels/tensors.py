"""Tensors as the kernels for large heads and for decoding read them."""

import ctypes

import torch
from torch import Tensor

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


def why_apart(*tensors: Tensor | None, kinds: tuple[str, ...]) -> str | None:
    """Say that tensors are not together on a device of one of `kinds`, or return None."""
    devices = {x.device for x in tensors if x is not None}
    if len(devices) == 1 and next(iter(devices)).type in kinds:
        return None
    found = ", ".join(sorted(map(str, devices)))
    return f"all tensors must be on one CUDA device, got {found}"

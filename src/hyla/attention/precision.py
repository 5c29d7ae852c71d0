"""What autocast does to the operands of attention."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

# Asked once: torch.compile cannot trace the question in torch 2.11.
_KINDS = frozenset(
    kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(kind)
)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Disable autocast on the device of `x`, also where there is none ("meta").

    Where it is off already nothing is entered: what torch.compile keeps of a function on disk
    (its AOT graphs) it does not keep if autocast is switched in it.
    """
    kind = x.device.type if x.device.type in _KINDS else "cpu"
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def in_autocast_dtype(x: Tensor) -> Tensor:
    """Cast as autocast casts the operands of a matrix product; float64 it leaves alone."""
    kind = x.device.type
    if kind not in _KINDS or not torch.is_autocast_enabled(kind):
        return x
    if x.dtype == torch.float64 or not x.is_floating_point():
        return x
    return x.to(torch.get_autocast_dtype(kind))

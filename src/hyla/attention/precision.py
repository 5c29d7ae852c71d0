"""What autocast does to the operands of attention."""

import torch
from torch import Tensor

# Asked once: torch.compile cannot trace the question in torch 2.11.
_KINDS = frozenset(
    kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(kind)
)


def autocast_kind(x: Tensor) -> str:
    """Return the kind of device to disable autocast for, also where there is none ("meta")."""
    kind = x.device.type
    return kind if kind in _KINDS else "cpu"


def in_autocast_dtype(x: Tensor) -> Tensor:
    """Cast as autocast casts the operands of a matrix product; float64 it leaves alone."""
    kind = x.device.type
    if kind not in _KINDS or not torch.is_autocast_enabled(kind):
        return x
    if x.dtype == torch.float64 or not x.is_floating_point():
        return x
    return x.to(torch.get_autocast_dtype(kind))

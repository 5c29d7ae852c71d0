"""What autocast does to the operands of attention."""

import torch
from torch import Tensor

# Asked once: torch.compile cannot trace the question in torch 2.11.
_KINDS = frozenset(
    kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(kind)
)


def in_autocast_dtype(x: Tensor) -> Tensor:
    """Cast as autocast casts the operands of a matrix product; float64 it leaves alone."""
    kind = x.device.type
    if kind not in _KINDS or not torch.is_autocast_enabled(kind):
        return x
    return x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(kind))

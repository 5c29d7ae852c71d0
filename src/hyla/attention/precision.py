"""What autocast does to the operands of attention."""

import torch
from torch import Tensor


def in_autocast_dtype(x: Tensor) -> Tensor:
    """Cast as autocast casts the operands of a matrix product; float64 it leaves alone."""
    kind = x.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return x
    return x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(kind))

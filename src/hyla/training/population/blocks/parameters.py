"""Parameters of all members, one stride from each member to the next."""

from collections.abc import Sequence

import torch
from torch import Tensor


def with_one_stride(parameters: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """Return the parameters [P, ...] such that one stride leads to each next member's."""
    strides = {parameter.stride(0) for parameter in parameters}
    one_stride = len(strides) == 1 or len(parameters[0]) == 1  # a single member has no next
    if one_stride and all(parameter[0].is_contiguous() for parameter in parameters):
        return list(parameters), strides.pop()
    rows = torch.cat([parameter.flatten(1) for parameter in parameters], dim=1)
    return apart(rows, parameters), rows.shape[1]


def apart(rows: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return what lies side by side in rows [P, T], each in the shape of its parameter [P, ...]."""
    parts = rows.split([parameter[0].numel() for parameter in parameters], dim=1)
    pairs = zip(parts, parameters, strict=True)
    return [part.unflatten(1, parameter.shape[1:]) for part, parameter in pairs]

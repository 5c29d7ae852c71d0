"""Initialisation as in the authors' release."""

import math

import torch
from torch import Tensor, nn

# The standard deviation of a unit normal cut at ±2, by which the cut distribution is widened.
_STD_OF_TRUNCATED_NORMAL = 0.87962566103423978


def lecun_normal_(weight: Tensor, fan_in: int, generator: torch.Generator | None = None) -> Tensor:
    """Fill with a normal of variance 1/fan_in, truncated at two standard deviations."""
    std = 1 / math.sqrt(fan_in) / _STD_OF_TRUNCATED_NORMAL
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)


def initialise_linear_(layer: nn.Linear, generator: torch.Generator | None = None) -> None:
    """LeCun normal weights, zero bias."""
    lecun_normal_(layer.weight, layer.in_features, generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)

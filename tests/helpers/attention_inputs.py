"""Random arguments of `attention` for any member of the family."""

from typing import Any

import torch
from torch import Tensor

from hyla.attention import PRESETS, AttentionSpec, resolve_spec

FAMILY = (
    *PRESETS,
    "hyla.rms4",
    "hyla.expected",
    "hyla.silu.plain16",
    "softmax.expected",
    "hyla_deep.expected2",
    "hyla_residual_minus_rmshead.rms2",
)
"""Names that reach every value of each of the family's three axes."""


def operands(
    attention: str | AttentionSpec,
    *,
    batch: int = 2,
    queries: int = 5,
    keys: int | None = None,
    heads: int = 3,
    size: int = 4,
    value_size: int = 4,
    dtype: torch.dtype = torch.float32,
    magnitude: float = 1.0,
    requires_grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Return q, k, v and the options: the spec, and for the deep value network its weights."""
    keys = queries if keys is None else keys

    def draw(*shape: int, by: float = magnitude) -> Tensor:
        x = torch.randn(*shape, dtype=torch.float64) * by
        return x.to(dtype).requires_grad_(requires_grad)

    options: dict[str, Any] = {"attention": attention}
    if resolve_spec(attention).value == "deep":
        options["value_weight"] = draw(heads, value_size, value_size, by=value_size**-0.5)
    return (
        draw(batch, queries, heads, size),
        draw(batch, keys, heads, size),
        draw(batch, keys, heads, value_size),
        options,
    )

"""Key heads that groups of query heads share: grouped-query and multi-query attention.

Of H query heads and G key heads, query head h reads key head h // (H / G), as elsewhere. The
kernels for large heads and for decoding find a head's keys and values where they lie; everybody
else has them repeated here.
"""

from jaxtyping import Float
from torch import Tensor


def for_every_head(x: Float[Tensor, "B T G D"], heads: int) -> Float[Tensor, "B T H D"]:
    """Repeat keys or values so that every query head has its own; as they are if it has."""
    if x.shape[2] == heads:
        return x
    shared_by = heads // x.shape[2]
    return x.unsqueeze(3).expand(-1, -1, -1, shared_by, -1).flatten(2, 3)


def summed_over_groups(
    gradient: Float[Tensor, "B T H D"], key_heads: int
) -> Float[Tensor, "B T G D"]:
    """Return the gradient of shared keys or values from that of every query head's."""
    if gradient.shape[2] == key_heads:
        return gradient
    return gradient.unflatten(2, (key_heads, -1)).sum(3)

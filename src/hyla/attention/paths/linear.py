r"""Linear attention in linear time: $\sum_k (q \cdot k)\, v = q \sum_k k v^\top$.

Without a normalisation and with a linear value network nothing happens at a pair, so keys and
values can be summed up before a query sees them. Of HYLA this is not true: its φ sits on each pair.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.attention.distance import DistanceBias
from hyla.attention.groups import for_every_head

CHUNK = 128
# Smaller heads are the tasks' little models, on sequences shorter than a chunk. They run under
# vmap, where the fused softmax does not.
MIN_WIDTH = 32


def applies(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | DistanceBias | None,
    mask: Tensor | None,
    causal: bool,
) -> bool:
    """Say whether sums of keys and values can compute this; else a fused softmax cannot either."""
    masked = bias is not None or mask is not None
    aligned = not causal or q.shape[1] in (1, k.shape[1])
    return q.shape[-1] >= MIN_WIDTH and not masked and aligned


def linear_time_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> Tensor:
    """Attend from q [B, Tq, H, D] to k and v [B, Tk, G, Dv]; the sums are float32 or better."""
    given = q.dtype
    k, v = (for_every_head(x, q.shape[2]) for x in (k, v))
    if given == torch.float16:  # sums over thousands of keys leave its range
        q, k, v = q.float(), k.float(), v.float()
    q = q * scale
    if not causal or q.shape[1] <= 1:
        return torch.einsum("bqhd,bhde->bqhe", q, _sum(k, v).to(q.dtype)).to(given)
    batch, tokens = q.shape[:2]
    chunks = -(-tokens // CHUNK)
    missing = chunks * CHUNK - tokens
    if missing:  # zeros add nothing
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, missing)) for x in (q, k, v))
    q, k, v = (x.unflatten(1, (chunks, CHUNK)).flatten(0, 1) for x in (q, k, v))
    inside = torch.einsum("bqhd,bkhd->bhqk", q, k).tril()
    out = torch.einsum("bhqk,bkhe->bqhe", inside, v)
    sums = _sum(k, v).unflatten(0, (batch, chunks))
    # Shifted and not subtracted: no later token may leave its rounding in an earlier output.
    before = F.pad(sums.cumsum(1)[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0)).flatten(0, 1)
    out = out + torch.einsum("bqhd,bhde->bqhe", q, before.to(q.dtype))
    return out.unflatten(0, (batch, chunks)).flatten(1, 2)[:, :tokens].to(given)


def _sum(k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bkhd,bkhe->bhde", k, v).to(torch.promote_types(k.dtype, torch.float32))

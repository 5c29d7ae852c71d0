"""What becomes of a query's output, all heads together, before `W_out`: the family's third axis.

As it is, an output grows with the number of keys and of heads, and at the start it can drown the
residual stream that it joins (docs/findings.md).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from hyla.attention.start import Number, expected_deviation

if TYPE_CHECKING:
    from hyla.attention.spec import AttentionSpec

OUTPUTS: Mapping[str, str] = {
    "plain": "the sum over the keys as it is",
    "expected": "divided by the standard deviation expected at the start, for the keys that the "
    "query sees",
    "rms": "divided by its root mean square over all heads",
}

RMS_EPS = 1e-6  # added to the mean square, so that a query without any key stays 0


def finish_output(
    out: Float[Tensor, "B Tq H Dv"], spec: "AttentionSpec", keys_seen: Number
) -> Float[Tensor, "B Tq H Dv"]:
    """Apply `spec.output` and `spec.gain`, in float32 or better.

    `keys_seen` is a number or broadcasts to [B, Tq].
    """
    if spec.output == "plain" and spec.gain == 1:
        return out
    factor: Number
    wide = out.to(torch.promote_types(out.dtype, torch.float32))
    if spec.output == "rms":
        mean_square = wide.square().mean(dim=(-2, -1), keepdim=True)
        overflow = mean_square.detach() * 0  # NaN of infinity, rather than an output of 0
        factor = spec.gain * torch.rsqrt(mean_square + overflow + RMS_EPS)
    else:
        factor = row_factor(spec, keys_seen, out.shape[-2])
        if isinstance(factor, Tensor):
            factor = factor[..., None, None].to(wide.dtype)
    return (wide * factor).to(out.dtype)


def row_factor(spec: "AttentionSpec", keys_seen: Number, heads: int) -> Number:
    """Return what multiplies an output that is plain, or divided by what is expected."""
    if spec.output == "plain":
        return spec.gain
    if isinstance(keys_seen, Tensor):  # a query without any key has nothing to divide
        keys_seen = keys_seen.clamp(min=1)
    return spec.gain / expected_deviation(spec, keys_seen, heads)


def keys_in_mask(mask: Tensor | None, keys: int) -> Number:
    """Count the keys that each query sees, over all heads on average; a mask includes causality."""
    if mask is None:
        if isinstance(keys, int):
            return float(max(keys, 1))
        # The same for torch.export; torch.compile of 2.11 follows the above alone.
        return torch.sym_float(torch.sym_max(keys, 1))  # pyright: ignore[reportReturnType]
    seen = mask.expand(*mask.shape[:-1], keys).to(torch.float32).sum(-1)
    return seen if seen.ndim < 2 else seen.mean(-2)


def keys_in_packing(starts: Tensor, tokens: int, *, causal: bool) -> Float[Tensor, "1 tokens"]:
    """Count the same for sequences laid one after the other, `starts` [sequences + 1]."""
    token = torch.arange(tokens, device=starts.device)
    following = torch.bucketize(token, starts, right=True)  # where the next sequence starts
    last = token + 1 if causal else starts[following]
    return (last - starts[following - 1])[None].float()


def keys_before(
    queries: int, keys: int, *, padding: Tensor | None, causal: bool, device: torch.device
) -> Number:
    """Count the same for key padding [B, Tk] and causality, without any [Tq, Tk] tensor."""
    if not causal:
        return float(max(keys, 1)) if padding is None else padding.sum(-1, keepdim=True).float()
    ends = keys - queries + 1, keys + 1
    if padding is None:
        return torch.arange(*ends, device=device, dtype=torch.float32)[None]
    running = F.pad(padding.to(torch.int32).cumsum(-1), (1, 0))
    return running[:, torch.arange(*ends, device=device).clamp(min=0)].float()

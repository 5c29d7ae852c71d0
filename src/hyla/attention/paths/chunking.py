"""The reference path within bounded memory: a few queries at a time."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hyla.attention.reference import reference_attention
from hyla.attention.spec import AttentionSpec

# The reference path holds tensors of [B, Tq, Tk, H] and [B, Tq, Tk, Dv]. Above this many elements
# (256 MiB in float32) it takes the queries in chunks and recomputes each in the backward pass.
MAX_PAIRWISE_ELEMENTS = 1 << 26


def queries_per_chunk(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> int:
    """How many queries to attend from at once so that the pairwise tensors stay small.

    An exported program takes all at once: it has the shapes of every call to come.
    """
    if torch.compiler.is_exporting():
        return q.shape[1]
    B, Tq, H, _ = q.shape
    Dv = v.shape[-1]
    width = {"hidden": max(H, Dv), "residual": max(H, Dv), "deep": H * Dv}.get(spec.value, H)
    per_query = B * k.shape[1] * width
    if Tq * per_query <= MAX_PAIRWISE_ELEMENTS:
        return Tq
    return max(1, MAX_PAIRWISE_ELEMENTS // per_query)


def attend_in_chunks(
    q: Tensor, k: Tensor, v: Tensor, *, rows: int, causal: bool, need_code: bool, **arguments
) -> tuple[Tensor, Tensor | None]:
    """Call `reference_attention` on `rows` queries at a time; the code only if it is needed."""
    by_query = {name: arguments.pop(name) for name in ("bias", "mask", "code_multiplier")}
    past = k.shape[1] - q.shape[1]  # keys before the first query

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor | None]:
        chunk = {name: query_rows(x, slice(start, start + rows)) for name, x in by_query.items()}
        if causal:
            chunk["mask"] = and_causal(chunk["mask"], q, k, past + start)
        out, code = reference_attention(q, k, v, **chunk, **arguments)
        return out, code if need_code else None

    if rows >= q.shape[1]:
        return attend(q, k, v, 0)

    # vmap and grad of torch.func cannot recompute: under them the chunks bound the memory of the
    # forward pass alone.
    recompute = not torch._C._are_functorch_transforms_active()
    outs, codes = [], []
    for start in range(0, q.shape[1], rows):
        chunk = (q[:, start : start + rows], k, v, start)
        out, code = checkpoint(attend, *chunk, use_reentrant=False) if recompute else attend(*chunk)
        outs.append(out)
        codes.append(code)
    return torch.cat(outs, dim=1), torch.cat(codes, dim=2) if need_code else None


def and_causal(mask: Tensor | None, q: Tensor, k: Tensor, first: int) -> Tensor:
    """Restrict `mask` to keys at or before each query, the first query being at `first`."""
    queries = torch.arange(first, first + q.shape[1], device=q.device)
    allowed = torch.arange(k.shape[1], device=q.device) <= queries[:, None]  # [Tq, Tk]
    return allowed if mask is None else mask & allowed


def query_rows(x: Tensor | None, rows: slice | Int[Tensor, " P"]) -> Tensor | None:
    """Pick rows of the query axis of a tensor that broadcasts to [B, H, Tq, Tk], if it has one."""
    return x if x is None or x.ndim < 2 or x.shape[-2] == 1 else x[..., rows, :]

"""Decoding from a cache in pages: sequences of different lengths share one pool of memory."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hyla.attention.api import attention as attend
from hyla.attention.dispatch import attend_by_kernel, wants_kernel
from hyla.attention.precision import in_autocast_dtype
from hyla.attention.spec import AttentionSpec, resolve_spec
from hyla.attention.validation import check_arguments


def paged_attention(
    q: Float[Tensor, "B 1 H D"],
    k: Float[Tensor, "pages page G D"],
    v: Float[Tensor, "pages page G Dv"],
    table: Int[Tensor, "B P"],
    lengths: Int[Tensor, " B"],
    *,
    attention: str | AttentionSpec = "hyla",
    scale: float | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Float[Tensor, "B 1 H Dv"]:
    """Attend from the last token of each sequence to all its tokens, which lie in pages.

    Token t of sequence b is token t % page of page `table[b, t // page]`. Tables on a CPU are
    checked. On a GPU they are taken on trust, because to look at them would be to wait for them;
    the fused kernel reads nothing outside of the cache, and gives NaN to a sequence whose length or
    pages do not exist.

    Args:
        q: a query for each sequence [B, 1, H, D].
        k: keys of all sequences [pages, page, G, D]: so many pages of so many tokens. G is H or,
            for grouped-query attention, divides it.
        v: values.
        table: the pages of each sequence in their order, int32 [B, P] (int64 is converted). Entries
            beyond a sequence's length may be anything.
        lengths: the tokens of each sequence, int32 [B].
        attention: a preset name or an `AttentionSpec`, of any but the deep value network.
        scale: of the dot products; 1/sqrt(D) by default.
        eps: added to the mean square by RMSHead.
        backend: "reference" (the pages are copied together first), "fused" (runs or raises) or
            "auto".
    """
    spec = resolve_spec(attention)
    q, k, v = (in_autocast_dtype(x) for x in (q, k, v))
    _check(q, k, v, spec, eps, backend)
    _check_table(table, lengths, q, k)
    if wants_kernel(backend, q):
        from hyla.attention.kernels.packing import Paging  # not without a GPU

        fused = attend_by_kernel(
            backend,
            *(q, k, v),
            spec=spec,
            scale=1 / math.sqrt(q.shape[-1]) if scale is None else scale,
            eps=eps,
            causal=False,
            paging=Paging(*(x.to(torch.int32).contiguous() for x in (table, lengths))),
        )
        if fused is not None:
            return fused
    page, pages = k.shape[1], table.shape[1]
    used = torch.arange(pages, device=q.device) * page < lengths[:, None]
    table = table.where(used, 0).long()
    mask = torch.arange(pages * page, device=q.device) < lengths[:, None]
    return attend(
        q,
        *(x[table].flatten(1, 2) for x in (k, v)),
        attention=spec,
        mask=mask[:, None, None],
        scale=scale,
        eps=eps,
        backend="reference",
    )


def _check(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, eps: float, backend: str) -> None:
    if q.ndim != 4 or q.shape[1] != 1:
        raise ValueError(
            f"q must be [sequences, 1, heads, head size], a query for each, got {tuple(q.shape)}"
        )
    for name, x in (("k", k), ("v", v)):
        if x.ndim != 4 or 0 in x.shape[:2]:
            raise ValueError(
                f"{name} must be [pages, tokens of a page, heads, head size], none of them 0, "
                f"got {tuple(x.shape)}"
            )
    if k.shape[:2] != v.shape[:2]:
        raise ValueError(
            "k and v must have the same pages of the same size, "
            f"got {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if spec.value == "deep":
        raise ValueError("a cache in pages has no deep value network: its weights are per call")
    check_arguments(
        q,
        *(x[:1].expand(len(q), -1, -1, -1) for x in (k, v)),  # as if all had the first page
        spec=spec,
        eps=eps,
        backend=backend,
    )


def _check_table(table: Tensor, lengths: Tensor, q: Tensor, k: Tensor) -> None:
    given = (("table", table, 2, "[sequences, pages]"), ("lengths", lengths, 1, "[sequences]"))
    for name, x, axes, shape in given:
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be an int32 tensor {shape}, got {type(x).__name__}")
        if x.dtype not in (torch.int32, torch.int64) or x.ndim != axes or len(x) != len(q):
            raise ValueError(
                f"{name} must be int32 {shape} for {len(q)} sequences, "
                f"got {x.dtype} {tuple(x.shape)}"
            )
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}, but q is on {q.device}; move it")
    # Values that are not here, or not yet.
    if table.device.type != "cpu" or torch.compiler.is_compiling():
        return
    pages, page = k.shape[:2]
    room = table.shape[1] * page
    for sequence, (length, row) in enumerate(zip(lengths.tolist(), table.tolist(), strict=True)):
        if not 0 <= length <= room:
            raise ValueError(
                f"sequence {sequence} has a length of {length}, but the table has room for "
                f"{room} tokens: {table.shape[1]} pages of {page}"
            )
        wrong = [entry for entry in row[: -(-length // page)] if not 0 <= entry < pages]
        if wrong:
            raise ValueError(
                f"the table gives sequence {sequence} page {wrong[0]}, but the cache has {pages}"
            )

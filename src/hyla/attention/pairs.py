"""The latent code by itself: of all query-key pairs, or of a few without all the others."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hyla.attention.paths.chunking import and_causal, query_rows
from hyla.attention.precision import without_autocast
from hyla.attention.reference import latent_code, without_infinite_bias
from hyla.attention.spec import AttentionSpec


def as_pairs(pairs: Tensor | Sequence[tuple[int, int]]) -> Int[Tensor, "P 2"]:
    """Return listed (query, key) pairs as a tensor; raise a ValueError for what lists none."""
    try:
        listed = torch.as_tensor(pairs)
    except (TypeError, ValueError, RuntimeError):  # what torch makes no tensor of
        listed = torch.empty(0)
    fits = listed.ndim == 2 and listed.shape[1] == 2
    if not fits or listed.is_floating_point() or listed.dtype == torch.bool:
        given = f"{pairs.dtype} {tuple(pairs.shape)}" if isinstance(pairs, Tensor) else repr(pairs)
        raise ValueError(
            "return_code must be True, False or (query, key) pairs of integers, a list or a tensor "
            f"[P, 2], got {given}"
        )
    return listed


def codes_of_pairs(
    q: Float[Tensor, "B Tq H D"],
    k: Float[Tensor, "B Tk H D"],
    pairs: Int[Tensor, "P 2"],
    *,
    bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    code_multiplier: Tensor | None,
    **options: Any,
) -> Float[Tensor, "B P H"]:
    """Return the code of each (query, key) in `pairs`; negative positions count from the end.

    Only the rows of the pairs' queries are computed: a softmax needs all keys of a row, and
    nothing needs more. The arguments are those of `codes_of_all`.
    """
    queries, keys = pairs.to(q.device).unbind(dim=1)
    bias, mask, code_multiplier = (query_rows(x, queries) for x in (bias, mask, code_multiplier))
    if causal:
        last = queries % q.shape[1] + k.shape[1] - q.shape[1]  # the last key that each query sees
        seen = torch.arange(k.shape[1], device=q.device) <= last[:, None]
        mask = seen if mask is None else mask & seen
    by_query = {"bias": bias, "mask": mask, "code_multiplier": code_multiplier}
    rows = codes_of_all(q[:, queries], k, causal=False, **by_query, **options)
    each = torch.arange(len(pairs), device=rows.device)
    return rows[:, :, each, keys].transpose(1, 2)


def codes_of_all(
    q: Float[Tensor, "B Tq H D"],
    k: Float[Tensor, "B Tk H D"],
    *,
    spec: AttentionSpec,
    scale: float,
    eps: float,
    bias: Tensor | None,
    bias_masks: bool,
    mask: Tensor | None,
    causal: bool,
    code_multiplier: Tensor | None,
) -> Float[Tensor, "B H Tq Tk"]:
    """Return the code of every pair; `attention` documents the arguments."""
    if causal:
        mask = and_causal(mask, q, k, k.shape[1] - q.shape[1])
    if bias_masks:
        mask = without_infinite_bias(mask, bias)
    with without_autocast(q):  # the reference picks its precision
        code = latent_code(q, k, spec=spec, scale=scale, eps=eps, bias=bias, mask=mask)
    if code_multiplier is not None:
        code = code * code_multiplier.to(code.dtype)
    return code.to(q.dtype)

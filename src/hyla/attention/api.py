"""`attention(q, k, v)`: checks its arguments and picks what computes it."""

import math
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hyla.attention.dispatch import attend_by_kernel, wants_kernel
from hyla.attention.distance import DistanceBias
from hyla.attention.groups import for_every_head
from hyla.attention.pairs import as_pairs, codes_of_all, codes_of_pairs
from hyla.attention.paths.chunking import and_causal, attend_in_chunks, queries_per_chunk
from hyla.attention.precision import in_autocast_dtype, without_autocast
from hyla.attention.reference import value_network
from hyla.attention.spec import AttentionSpec, resolve_spec
from hyla.attention.validation import check_arguments


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attention: str | AttentionSpec = ...,
    bias: Tensor | DistanceBias | None = ...,
    bias_masks: bool = ...,
    mask: Tensor | None = ...,
    causal: bool = ...,
    scale: float | None = ...,
    eps: float = ...,
    backend: str = ...,
    value_weight: Tensor | None = ...,
    code_multiplier: Tensor | None = ...,
    return_code: Literal[False] = ...,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attention: str | AttentionSpec = ...,
    bias: Tensor | DistanceBias | None = ...,
    bias_masks: bool = ...,
    mask: Tensor | None = ...,
    causal: bool = ...,
    scale: float | None = ...,
    eps: float = ...,
    backend: str = ...,
    value_weight: Tensor | None = ...,
    code_multiplier: Tensor | None = ...,
    return_code: Literal[True] | Tensor | Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Float[Tensor, "B Tq H D"],
    k: Float[Tensor, "B Tk G D"],
    v: Float[Tensor, "B Tk G Dv"],
    *,
    attention: str | AttentionSpec = "hyla",
    bias: Tensor | DistanceBias | None = None,
    bias_masks: bool = True,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
    value_weight: Float[Tensor, "H Dv Dv"] | None = None,
    code_multiplier: Tensor | None = None,
    return_code: bool | Int[Tensor, "P 2"] | Sequence[tuple[int, int]] = False,
) -> Float[Tensor, "B Tq H Dv"] | tuple[Float[Tensor, "B Tq H Dv"], Tensor]:
    """Attend from each query to all keys with a value network that the heads' scores configure.

    Args:
        q: queries [B, Tq, H, D].
        k: keys [B, Tk, G, D]. G is H, or divides it: each key head then serves H / G consecutive
            query heads (grouped-query attention; multi-query with G = 1).
        v: values [B, Tk, G, Dv].
        attention: a preset name (see `PRESETS`) or an `AttentionSpec`.
        bias: added to the scaled scores; broadcasts to [B, H, Tq, Tk], or depends on the distance
            alone (`DistanceBias`: faster with heads up to 16). -inf masks the pair.
        bias_masks: False promises that no bias is -inf, as of a learned one: nobody looks then.
        mask: boolean, True = attend; broadcasts to [B, H, Tq, Tk]. Key padding of shape [B, Tk]
            is passed as `padding[:, None, None, :]`. What no query may attend to may hold NaN.
        causal: query i sees keys up to i, counted from the end when Tq < Tk (cached decoding). A
            NaN in a later key stays there on the reference path and, forward, in some kernels;
            docs/kernel.md says in which.
        scale: of the dot products; 1/sqrt(D) by default.
        eps: added to the mean square by RMSHead.
        backend: "reference", "fused" (runs or raises), or "auto": on a GPU the fastest that
            applies, elsewhere the reference. The fused kernels need a GPU, or for heads up to 16
            in float32 a CPU and its C++ compiler; "softmax" and "linear" with heads of 32 and more
            are fused by PyTorch's own operations, on any device.
        value_weight: W_value' [H, Dv, Dv] of the deep value network (Eq. 10), and only for it.
        code_multiplier: multiplied into the code after the normalisation; broadcasts to
            [B, H, Tq, Tk]. Attention dropout is such a multiplier.
        return_code: also return the latent code: with True that of all pairs [B, H, Tq, Tk]; given
            (query, key) pairs, as a list of tuples or a tensor [P, 2], theirs alone [B, P, H],
            beside whatever computes the output. Negative positions count from the end.

    Returns:
        The output [B, Tq, H, Dv], which an output projection mixes over the heads; with
        `return_code`, the output and the code.
    """
    spec = resolve_spec(attention)
    q, k, v = (in_autocast_dtype(x) for x in (q, k, v))  # their dtypes may differ until here
    if not isinstance(return_code, bool):
        return_code = as_pairs(return_code)
    check_arguments(
        q,
        k,
        v,
        spec=spec,
        bias=bias,
        mask=mask,
        value_weight=value_weight,
        code_multiplier=code_multiplier,
        eps=eps,
        backend=backend,
        return_code=return_code,
    )
    if mask is not None:
        k, v = without_masked_keys(k, v, mask)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    arguments: dict[str, Any] = {
        "spec": spec,
        "scale": scale,
        "eps": eps,
        "bias": bias,
        "bias_masks": bias_masks,
        "mask": mask,
        "causal": causal,
        "value_weight": value_weight,
        "code_multiplier": code_multiplier,
    }
    fused = attend_by_kernel(backend, q, k, v, **arguments) if wants_kernel(backend, q) else None
    if fused is None or return_code is not False:  # the equations have a part in it
        k, v = (for_every_head(x, q.shape[2]) for x in (k, v))
        if isinstance(bias, DistanceBias):
            arguments["bias"] = bias.for_pairs(k.shape[1])
    if fused is None:
        rows, need_code = queries_per_chunk(q, k, v, spec), return_code is True
        with without_autocast(q):  # the reference picks its precision
            out, code = attend_in_chunks(q, k, v, rows=rows, need_code=need_code, **arguments)
    else:
        out, code = fused, None
    if return_code is False:
        return out
    if code is None:
        scores = {name: x for name, x in arguments.items() if name != "value_weight"}
        if isinstance(return_code, Tensor):
            code = codes_of_pairs(q, k, return_code, **scores)
        else:
            code = codes_of_all(q, k, **scores)
    return out, code


def attend_with_code(
    code: Float[Tensor, "B H Tq Tk"],
    q: Float[Tensor, "B Tq H D"],
    k: Float[Tensor, "B Tk G D"],
    v: Float[Tensor, "B Tk G Dv"],
    *,
    spec: AttentionSpec,
    mask: Tensor | None,
    causal: bool,
    value_weight: Tensor | None = None,
) -> Float[Tensor, "B Tq H Dv"]:
    """Return the output for another code than the queries and keys have, by the equations."""
    if mask is not None:
        _, v = without_masked_keys(k, v, mask)
    if causal:
        mask = and_causal(mask, q, k, k.shape[1] - q.shape[1])
    code = code.to(torch.promote_types(code.dtype, torch.float32))
    v = for_every_head(v, code.shape[1])
    with without_autocast(q):
        out = value_network(code, v, spec=spec, mask=mask, value_weight=value_weight)
    return out.to(q.dtype)


def without_masked_keys(k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Zero the keys that no query may attend to: a padded NaN would survive its code of 0."""
    mask = mask[(None,) * (4 - mask.ndim)]
    unused = ~mask.any(dim=1).any(dim=1)[:, :, None, None]  # [B, Tk, 1, 1]
    return k.masked_fill(unused, 0.0), v.masked_fill(unused, 0.0)

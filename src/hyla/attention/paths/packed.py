"""Attention over sequences of different lengths, packed one after the other without padding."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hyla.attention.api import attention as attend
from hyla.attention.dispatch import attend_by_kernel, wants_kernel
from hyla.attention.precision import in_autocast_dtype
from hyla.attention.spec import AttentionSpec, resolve_spec
from hyla.attention.validation import check_arguments


def packed_attention(
    q: Float[Tensor, "tokens H D"],
    k: Float[Tensor, "tokens G D"],
    v: Float[Tensor, "tokens G D"],
    cu_seqlens: Int[Tensor, " sequences+1"],
    *,
    max_seqlen: int | None = None,
    attention: str | AttentionSpec = "hyla",
    causal: bool = False,
    scale: float | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Float[Tensor, "tokens H D"]:
    """Attend within each sequence: tokens see nothing of other sequences.

    Args:
        q: queries of all sequences [tokens, H, D].
        k: keys [tokens, G, D]; G is H or, for grouped-query attention, divides it.
        v: values.
        cu_seqlens: where each sequence starts, from 0 to the number of tokens: int32
            [sequences + 1], the cumulative lengths as flash-attention takes them.
        max_seqlen: an upper bound on the lengths. With `cu_seqlens` on a GPU it is taken on trust,
            as these are (tokens beyond it would not be computed); without it they are read back
            from the device, and checked.
        attention: a preset name or an `AttentionSpec`.
        causal: a token sees those before it and itself.
        scale: of the dot products; 1/sqrt(D) by default.
        eps: added to the mean square by RMSHead.
        backend: "reference" (one sequence after the other), "fused" (runs or raises) or "auto".
    """
    spec = resolve_spec(attention)
    q, k, v = (in_autocast_dtype(x) for x in (q, k, v))
    _check(q, k, v, cu_seqlens, spec, eps, backend)
    longest = _longest(cu_seqlens, max_seqlen, len(q))
    if wants_kernel(backend, q):
        from hyla.attention.kernels.packing import Packing  # not without a GPU

        starts = cu_seqlens.to(q.device, torch.int32)
        fused = attend_by_kernel(
            backend,
            *(x.unsqueeze(0) for x in (q, k, v)),
            spec=spec,
            scale=1 / math.sqrt(q.shape[-1]) if scale is None else scale,
            eps=eps,
            causal=causal,
            packing=Packing(starts, starts, longest, longest),
        )
        if fused is not None:
            return fused.squeeze(0)
    inner = cu_seqlens[1:-1].cpu().long()  # tensor_split takes no other
    sequences = [x.tensor_split(inner) for x in (q, k, v)]
    outputs = [
        attend(
            *(x.unsqueeze(0) for x in one),
            attention=spec,
            causal=causal,
            scale=scale,
            eps=eps,
            backend="reference",
        ).squeeze(0)
        for one in zip(*sequences, strict=True)
    ]
    return torch.cat(outputs)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    spec: AttentionSpec,
    eps: float,
    backend: str,
) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3 or len(x) != len(q):
            raise ValueError(
                f"{name} must be [tokens, heads, head size] with the tokens of all sequences, "
                f"got {tuple(x.shape)}"
            )
    starts = isinstance(cu_seqlens, Tensor) and cu_seqlens.ndim == 1 and len(cu_seqlens) > 1
    if not starts or cu_seqlens.is_floating_point():
        given = (
            f"{cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
            if isinstance(cu_seqlens, Tensor)
            else repr(cu_seqlens)
        )
        raise ValueError(
            "cu_seqlens must be a tensor of the integer starts of the sequences and the number of "
            f"tokens, [sequences + 1], got {given}"
        )
    if spec.value == "deep":
        raise ValueError("packed sequences have no deep value network: its weights are per call")
    check_arguments(
        *(x.unsqueeze(0) for x in (q, k, v)),
        spec=spec,
        eps=eps,
        backend=backend,
    )


def _longest(cu_seqlens: Tensor, bound: int | None, tokens: int) -> int:
    if cu_seqlens.is_cuda and bound is not None:
        return bound
    starts = cu_seqlens.cpu().long()
    lengths = starts.diff()
    if starts[0] != 0 or starts[-1] != tokens or (lengths < 0).any():
        raise ValueError(
            f"cu_seqlens must rise from 0 to the number of tokens, {tokens}, "
            f"got {starts.tolist()[:8]}"
        )
    longest = int(lengths.max())
    if bound is not None and bound < longest:
        raise ValueError(f"max_seqlen is {bound}, but a sequence has {longest} tokens")
    return longest

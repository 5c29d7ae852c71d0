"""Which fused kernel can compute a call of `attention`, and if none, why."""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from hyla.attention.spec import AttentionSpec


def try_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    spec: AttentionSpec,
    scale: float,
    eps: float,
    bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    value_weight: Tensor | None,
    code_multiplier: Tensor | None,
) -> Tensor | str:
    """Return the output computed by a fused kernel, or the reason why none can."""
    if not (isinstance(spec.normalisation, str) and isinstance(spec.phi, str)):
        return "the kernels know normalisations and φ by name and one at a time"
    if value_weight is not None:
        return "the deep value network has no kernel"
    if code_multiplier is not None:
        return "a code multiplier (attention dropout) has no kernel"
    if mask is not None and not _is_padding(mask):
        return f"of masks only key padding [B, 1, 1, Tk] and causal, not {tuple(mask.shape)}"

    # Here and not above: the reference path must import without ctypes, CUDA or a compiler.
    from hyla.attention.kernels import ops, small_head

    pairwise = (q.shape[2], q.shape[1], k.shape[1])
    bias = None if bias is None else _with_batch_axis(bias).expand(-1, *pairwise)
    padding = None if mask is None else _with_batch_axis(mask)[:, 0, 0].expand(len(q), k.shape[1])
    member: dict[str, Any] = {
        "normalisation": spec.normalisation,
        "value": spec.value,
        "phi": spec.phi if spec.value != "linear" else "identity",
    }
    reason = small_head.why_unsupported(q, k, v, bias, padding, **member)
    if reason is not None:
        return reason
    return ops.small_head_attention(
        q, k, v, bias=bias, padding=padding, causal=causal, scale=scale, eps=eps, **member
    )


def say_once(reason: str) -> None:
    """Warn, the first time, that a call on a GPU takes the reference path."""
    if not torch.compiler.is_compiling():
        _warn(reason)


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"hyla: attention runs on the reference path, not a fused kernel: {reason}", stacklevel=4
    )


def _is_padding(mask: Tensor) -> bool:
    return mask.ndim == 1 or (mask.ndim in (2, 3, 4) and set(mask.shape[-3:-1]) <= {1})


def _with_batch_axis(x: Tensor) -> Tensor:
    return x[(None,) * (4 - x.ndim)]

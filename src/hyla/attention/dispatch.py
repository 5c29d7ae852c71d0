"""Which fused kernel can compute a call of `attention`, and if none, why."""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hyla.attention.distance import DistanceBias
from hyla.attention.output import RMS_EPS, keys_before, keys_in_packing, row_factor
from hyla.attention.paths import linear, softmax
from hyla.attention.spec import AttentionSpec
from hyla.attention.start import Number

if TYPE_CHECKING:
    from hyla.attention.kernels.call import Call
    from hyla.attention.kernels.packing import Packing, Paging

_WIDEST_RESIDUAL = 16  # heads of the kernel that knows this value network as one
_NUMBERS = re.compile(r"\d+")
_SAID: set[str] = set()

# Value networks that are others with the same code, added up; φ may come before or after.
_MADE_OF = {
    "residual": ("linear", "hidden"),
    "activated": ("linear",),
    "pooled": ("linear",),
}
# Members of the family that need no kernel of ours to be fast, with heads of some width.
_WITHOUT_A_KERNEL = {
    ("softmax", "linear"): (
        "scaled_dot_product_attention",
        softmax.applies,
        softmax.fused_softmax_attention,
    ),
    ("none", "linear"): ("linear_time", linear.applies, linear.linear_time_attention),
}


class Path(NamedTuple):
    """Who computes a call: the name of a kernel, or of what needs none, and what to call."""

    name: str
    attend: Callable[[], Tensor]


def wants_kernel(backend: str, q: Tensor) -> bool:
    """Say whether `backend` would have a fused kernel compute a call, if one can."""
    return backend == "fused" or (backend == "auto" and q.is_cuda)


def attend_by_kernel(
    backend: str, q: Tensor, k: Tensor, v: Tensor, **options: Any
) -> Tensor | None:
    """Return the output computed by a fused kernel, with the options of `choose_path`.

    Where none can, backend "fused" raises, and "auto" says why and leaves it to the reference path.
    """
    path = choose_path(q, k, v, if_faster=backend == "auto", **options)
    if not isinstance(path, str):
        return path.attend()
    if backend == "fused":
        raise ValueError(f"backend 'fused' cannot compute this: {path}; use 'auto'")
    say_once(path)
    return None


def choose_path(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    spec: AttentionSpec,
    bias: Tensor | DistanceBias | None = None,
    bias_masks: bool = True,
    if_faster: bool = False,
    **options: Any,
) -> Path | str:
    """Return who computes a call faster than the reference path, or the reason why nobody can.

    `options` are those of `attention`, with `packing` where sequences are packed and `paging` where
    k and v lie in pages. With `if_faster`, a kernel that was measured to be slower than the
    reference path is none.
    """
    if spec.output == "expected" and bias is not None and bias_masks:
        return "a bias may mask keys by -inf, which the kernels do not count (see bias_masks)"
    options |= {"bias": bias, "bias_masks": bias_masks, "if_faster": if_faster}
    members = _MADE_OF.get(spec.value)
    if members is None or (spec.value == "residual" and q.shape[-1] <= _WIDEST_RESIDUAL):
        path = _path_of_member(q, k, v, spec=spec, **options)
        if members is None or not isinstance(path, str):
            return path
    if spec.value == "activated":
        v = spec.activate(v)
    parts = []
    for value in members:
        # The linear value network has no φ, so that it may be any callable around it.
        phi = "identity" if value == "linear" else spec.phi
        part = replace(spec, value=value, phi=phi, output="plain", gain=1.0)
        path = _path_of_member(q, k, v, spec=part, **options)
        if isinstance(path, str):
            return path
        parts.append(path)
    seen = _keys_seen(q, k, **options)
    return Path(" + ".join(part.name for part in parts), partial(_add_up, spec, parts, seen))


def _add_up(spec: AttentionSpec, parts: list[Path], seen: Number) -> Tensor:
    out = parts[0].attend()
    for part in parts[1:]:
        out = out + part.attend()
    return spec.finish(spec.activate(out) if spec.value == "pooled" else out, seen)


def _path_of_member(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    spec: AttentionSpec,
    scale: float,
    eps: float,
    causal: bool,
    bias: Tensor | DistanceBias | None = None,
    bias_masks: bool,
    mask: Tensor | None = None,
    value_weight: Tensor | None = None,
    code_multiplier: Tensor | None = None,
    packing: "Packing | None" = None,
    paging: "Paging | None" = None,
    if_faster: bool,
) -> Path | str:
    steps = [step for step in spec.normalisation_steps if isinstance(step, str)]
    if len(steps) < len(spec.normalisation_steps) or not isinstance(spec.phi, str):
        return "the kernels know normalisations and φ by name"
    normalisation = "+".join(steps)
    if value_weight is not None:
        return "the deep value network has no kernel"
    if code_multiplier is not None and not _is_shared_by_heads(code_multiplier):
        return "attention dropout (a code multiplier) that differs between heads has no kernel"
    other = _WITHOUT_A_KERNEL.get((normalisation, spec.value))
    if other is not None and packing is None and paging is None and code_multiplier is None:
        name, applies, attend = other
        if applies(q, k, v, bias=bias, mask=mask, causal=causal):

            def attend_and_finish() -> Tensor:
                out = attend(q, k, v, causal=causal, scale=scale)
                return spec.finish(out, _keys_seen(q, k, causal=causal))

            return Path(name, attend_and_finish)
    if mask is not None and not _is_padding(mask):
        return f"of masks only key padding [B, 1, 1, Tk] and causal, not {tuple(mask.shape)}"

    # Here and not above: the reference path must import without ctypes, CUDA or a compiler.
    from hyla.attention.kernels.call import Call
    from hyla.attention.kernels.choice import choose_kernel
    from hyla.attention.kernels.formula import Formula

    gain: Number = spec.gain
    if spec.output == "expected":
        seen = _keys_seen(q, k, mask=mask, causal=causal, packing=packing, paging=paging)
        gain = row_factor(spec, seen, q.shape[2])
    by_row = isinstance(gain, Tensor)
    formula = Formula(
        normalisation=normalisation,
        value=spec.value,
        phi=spec.phi if spec.value != "linear" else "identity",
        scale=scale,
        eps=eps,
        causal=causal,
        output="rms" if spec.output == "rms" else "rows" if by_row else "plain",
        gain=1.0 if by_row else gain,
        output_eps=RMS_EPS,
    )
    multiplier = code_multiplier
    if multiplier is not None:
        multiplier = _with_batch_axis(multiplier)[:, 0].expand(-1, q.shape[1], k.shape[1])
    call = Call(
        *(q, k, v),
        formula=formula,
        bias=None if bias is None else _bias_of_call(bias, q, k),
        bias_masks=bias_masks,
        padding=None if mask is None else _padding(mask, k.shape[1]).expand(len(q), -1),
        multiplier=multiplier,
        packing=packing,
        paging=paging,
        row_factor=gain.expand(-1, q.shape[1]) if by_row else None,
    )
    kernel, reason = choose_kernel(call, if_faster=if_faster)
    if kernel is None:
        return reason
    return Path(kernel, partial(_attend, kernel, call, bias))


def _bias_of_call(bias: Tensor | DistanceBias, q: Tensor, k: Tensor) -> Tensor:
    """Return the bias by distance where the kernel that would be taken knows such, else by pair.

    To spread distances over the pairs is work and memory, and a choice reads no number: for that,
    one stands for all of them until `_attend`.
    """
    from hyla.attention.kernels import small_head

    (_, queries, heads, width), keys = q.shape, k.shape[1]
    if isinstance(bias, DistanceBias):
        if queries > 1 and width <= small_head.MAX_WIDTH:
            table = bias.table[(None,) * (3 - bias.table.ndim)]
            return table.expand(-1, heads, -1)
        bias = bias.table[..., :1].sum(-1)[..., None, None]  # also of a table without distances
    return _with_batch_axis(bias).expand(-1, heads, queries, keys)


def _attend(kernel: str, call: "Call", bias: Tensor | DistanceBias | None) -> Tensor:
    from hyla.attention.kernels.ops import fused_attention

    if isinstance(bias, DistanceBias) and call.bias is not None and call.bias.ndim == 4:
        pairs = _with_batch_axis(bias.for_pairs(call.k.shape[1]))
        call = replace(call, bias=pairs.expand(call.bias.shape))
    return fused_attention(kernel, call)


def _keys_seen(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool,
    mask: Tensor | None = None,
    packing: "Packing | None" = None,
    paging: "Paging | None" = None,
    **_: Any,
) -> Number:
    """Count the keys of each query, as [Bf, Tq] or as a number where all see all of them."""
    if packing is not None:
        return keys_in_packing(packing.key_starts, q.shape[1], causal=causal)
    if paging is not None:
        return paging.lengths[:, None].float()
    padding = None if mask is None else _padding(mask, k.shape[1])
    return keys_before(q.shape[1], k.shape[1], padding=padding, causal=causal, device=q.device)


def say_once(reason: str) -> None:
    """Warn, the first time, that what a kernel was expected to compute takes the reference path."""
    kind = _NUMBERS.sub("", reason)  # once per reason, not once per shape
    if torch.compiler.is_compiling() or kind in _SAID:
        return
    _SAID.add(kind)
    warnings.warn(
        f"hyla: attention runs on the reference path, not a fused kernel: {reason}", stacklevel=4
    )


def _is_padding(mask: Tensor) -> bool:
    return mask.ndim == 1 or (mask.ndim in (2, 3, 4) and set(mask.shape[-3:-1]) <= {1})


def _is_shared_by_heads(multiplier: Tensor) -> bool:
    return multiplier.ndim < 3 or multiplier.shape[-3] == 1


def _padding(mask: Tensor, keys: int) -> Tensor:
    """Return key padding [B or 1, Tk] from a mask that is no more."""
    return _with_batch_axis(mask)[:, 0, 0].expand(-1, keys)


def _with_batch_axis(x: Tensor) -> Tensor:
    return x[(None,) * (4 - x.ndim)]

"""The fused kernels as one torch operator: autograd, vmap, autocast, fake tensors, compile.

Under `torch.func.vmap` the mapped axis is folded into the batch, so a population of P models runs
as one launch; a bias of each model's own becomes P biases, each shared by that model's batch.
"""

import torch
from torch import Tensor

from hyla.attention.kernels import decode, large_head, output_stage, small_head
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.gradients import (
    is_differentiated,
    under_torch_func_grad,
    why_not_forward_mode,
)
from hyla.attention.kernels.packing import Packing
from hyla.attention.precision import in_autocast_dtype

KERNELS = {
    "small_head": small_head,
    "large_head": large_head,
    "large_head_plain": large_head,  # a name of its own, because it has a speed of its own
    "decode": decode,
}


def choose_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    packing: Packing | None,
    row_factor: Tensor | None = None,
    formula: Formula,
) -> tuple[str | None, str]:
    """Return the kernel for a call, and if there is none, why."""
    arguments = (q, k, v, bias, padding, multiplier, packing, formula)
    reason = _why_not_differentiable(q, k, v, bias, multiplier)
    reason = reason or output_stage.why_unfit(q, row_factor, formula)
    if reason is not None:
        return None, reason
    if q.shape[1] == 1 and decode.why_unsupported(*arguments) is None:
        return "decode", ""
    name = "small_head" if q.shape[-1] <= small_head.MAX_WIDTH else "large_head"
    reason = KERNELS[name].why_unsupported(*arguments)
    if reason is not None:
        return None, reason
    plain = name == "large_head" and large_head.needs_plain_arithmetic(q, k, v, bias)
    return "large_head_plain" if plain else name, ""


def _why_not_differentiable(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, multiplier: Tensor | None
) -> str | None:
    if multiplier is not None and is_differentiated(multiplier):
        return "the code multiplier has no gradient in the kernels"
    return why_not_forward_mode(q, k, v, bias, multiplier)


def fused_attention(
    kernel: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    padding: Tensor | None = None,
    multiplier: Tensor | None = None,
    packing: Packing | None = None,
    row_factor: Tensor | None = None,
    formula: Formula,
    deterministic: bool = False,
) -> Tensor:
    """Fused attention of q [B, Tq, H, D] over k and v [B, Tk, H, D], differentiable once.

    `bias` [Bb, H, Tq, Tk] is added to the scaled scores; each run of B / Bb consecutive batch
    elements shares one. `padding` [B, Tk] is True where a key may be attended to. `multiplier`
    [Bm, Tq, Tk], a constant, multiplies the codes of a pair in all heads and is shared like a bias.
    With `packing`, B is 1 and the tokens are those of several sequences, which do not see each
    other. `row_factor` [Bf, Tq], float32 and a constant, scales the output of each query where the
    formula's output is "rows", and is shared like a bias; of packed sequences it is [1, tokens].
    Causality lets the last query see the last key, the one before it all but the last, and so on. A
    masked pair contributes nothing and receives no gradient.

    Sums are float32. Under autocast, q, k and v are cast to its dtype. The gradient of the bias
    and, for large heads, of q are added up atomically unless `deterministic` (or torch's global
    setting) asks for sums in a fixed order; everything else always has one.

    Raises ValueError with the reason where the kernel cannot run; its `why_unsupported` tells
    beforehand.
    """
    q, k, v = (in_autocast_dtype(x) for x in (q, k, v))
    reason = _why_not_differentiable(q, k, v, bias, multiplier)
    reason = reason or output_stage.why_unfit(q, row_factor, formula)
    reason = reason or KERNELS[kernel].why_unsupported(
        q, k, v, bias, padding, multiplier, packing, formula
    )
    if reason is not None:
        raise ValueError(f"the fused {kernel} kernel cannot run here: {reason}")
    padding = None if padding is None else padding.contiguous()
    packed = (None, None, 0, 0)
    if packing is not None:
        starts = (packing.query_starts, packing.key_starts)
        packed = (*starts, packing.longest_query, packing.longest_key)
    run = _FunctionalAttention.apply if under_torch_func_grad() else _attention
    output, *_ = run(
        *(q, k, v, bias, padding, multiplier, row_factor, *packed),
        *(kernel, formula.normalisation, formula.value, formula.phi),
        *(formula.scale, formula.eps, formula.causal),
        *(formula.output, formula.gain, formula.output_eps, deterministic),
    )
    return output


# `device_types` is left open: the same operators run wherever a kernel can be launched, which lets
# the tests run a host build of it.
@torch.library.custom_op("hyla::fused_attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    row_factor: Tensor | None,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    longest_query: int,
    longest_key: int,
    kernel: str,
    normalisation: str,
    value: str,
    phi: str,
    scale: float,
    eps: float,
    causal: bool,
    output: str,
    gain: float,
    output_eps: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Also return what a backward needs of each row, or [0] where it needs none.

    That is what the row was multiplied by [B, Tq], and for a softmax the logarithms of its sums
    [B, Tq, H].
    """
    total_factor, log_sum = _statistics(q, kernel, normalisation, output)
    softmax = {"log_sum": log_sum} if normalisation == "softmax" else {}
    y = KERNELS[kernel].forward(
        *(q, k, v, bias, padding, multiplier),
        _packing(query_starts, key_starts, longest_query, longest_key),
        _formula(normalisation, value, phi, scale, eps, causal, output, gain, output_eps),
        row_factor=None if row_factor is None else row_factor.contiguous(),
        total_factor=total_factor if total_factor.ndim == 2 else None,
        **softmax,
    )
    return y, total_factor, log_sum


@torch.library.custom_op("hyla::fused_attention_backward", mutates_args=())
def _attention_backward(
    upstream: Tensor,
    y: Tensor | None,
    total_factor: Tensor | None,
    log_sum: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    multiplier: Tensor | None,
    row_factor: Tensor | None,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    longest_query: int,
    longest_key: int,
    kernel: str,
    normalisation: str,
    value: str,
    phi: str,
    scale: float,
    eps: float,
    causal: bool,
    output: str,
    gain: float,
    output_eps: float,
    deterministic: bool,
    bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An operator cannot return None: without `bias_gradient`, the last result is empty."""
    formula = _formula(normalisation, value, phi, scale, eps, causal, output, gain, output_eps)
    row_factor = None if row_factor is None else row_factor.contiguous()
    upstream, formula = output_stage.raw_upstream(upstream, y, total_factor, row_factor, formula)
    softmax = {} if log_sum is None else {"log_sum": log_sum}
    dq, dk, dv, dbias = KERNELS[kernel].backward(
        *(upstream, q, k, v, bias, padding, multiplier),
        _packing(query_starts, key_starts, longest_query, longest_key),
        formula,
        bias_gradient=bias_gradient,
        deterministic=deterministic,
        **softmax,
    )
    return dq, dk, dv, dbias if dbias is not None else q.new_empty(0)


def _formula(
    normalisation: str,
    value: str,
    phi: str,
    scale: float,
    eps: float,
    causal: bool,
    output: str,
    gain: float,
    output_eps: float,
) -> Formula:
    return Formula(
        normalisation=normalisation,
        value=value,
        phi=phi,
        scale=scale,
        eps=eps,
        causal=causal,
        output=output,
        gain=gain,
        output_eps=output_eps,
    )


def _statistics(q: Tensor, kernel: str, normalisation: str, output: str) -> tuple[Tensor, Tensor]:
    factors = q.shape[:2] if output == "rms" and kernel != "decode" else (0,)
    sums = q.shape[:3] if normalisation == "softmax" else (0,)
    like = {"dtype": torch.float32, "device": q.device}
    return torch.empty(factors, **like), torch.empty(sums, **like)


def _packing(
    query_starts: Tensor | None, key_starts: Tensor | None, longest_query: int, longest_key: int
) -> Packing | None:
    if query_starts is None or key_starts is None:
        return None
    return Packing(query_starts, key_starts, longest_query, longest_key)


# ------------------------------------------------------------------ shapes without values


@_attention.register_fake
def _(q, *rest):
    kernel, normalisation, *_, output, _, _, _ = rest[10:]
    y = torch.empty_like(q, memory_format=torch.contiguous_format)
    return y, *_statistics(q, kernel, normalisation, output)


@_attention_backward.register_fake
def _(upstream, y, total_factor, log_sum, q, k, v, bias, *rest):
    *_, bias_gradient = rest
    gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    if bias is not None and bias_gradient:
        return *gradients, torch.empty_like(bias, memory_format=torch.contiguous_format)
    return *gradients, q.new_empty(0)


# ------------------------------------------------------------------ autograd


def _save(ctx, inputs, output):
    tensors, options = inputs[:9], inputs[9:]
    y, total_factor, log_sum = output
    kept = (y, total_factor) if total_factor.ndim == 2 else (None, None)
    ctx.save_for_backward(*kept, log_sum if log_sum.ndim == 3 else None, *tensors)
    ctx.mark_non_differentiable(total_factor, log_sum)
    ctx.set_materialize_grads(False)  # no zeros for the gradient that nobody has
    ctx.options = options


def _differentiate(ctx, upstream, *_):
    saved = ctx.saved_tensors  # once: under activation checkpointing a second look is an error
    bias_gradient = saved[6] is not None and ctx.needs_input_grad[3]
    run = _FunctionalGradient.apply if under_torch_func_grad() else _attention_backward
    dq, dk, dv, dbias = run(upstream, *saved, *ctx.options, bias_gradient)
    unused = [None] * (5 + len(ctx.options))  # what masks, multiplies and packs, and no tensors
    return dq, dk, dv, dbias if bias_gradient else None, *unused


_attention.register_autograd(_differentiate, setup_context=_save)


class _FunctionalAttention(torch.autograd.Function):
    """The same for `torch.func.grad` and its kin, which refuse operators' own autograd formulas."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(*inputs):
        return _attention(*inputs)

    @staticmethod
    def backward(ctx, *upstreams):
        return _differentiate(ctx, *upstreams)


class _FunctionalGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):
        return _attention_backward(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *upstreams):
        raise RuntimeError("fused attention has no second derivative: use backend='reference'")


# ------------------------------------------------------------------ vmap


def _fold(x: Tensor, mapped: int | None, size: int) -> Tensor:
    """Fold the mapped axis (or `size` copies, where there is none) into the first."""
    stacked = x.expand(size, *x.shape) if mapped is None else x.movedim(mapped, 0)
    return stacked.flatten(0, 1)


def _fold_optional(x: Tensor | None, mapped: int | None, size: int) -> Tensor | None:
    return None if x is None else _fold(x, mapped, size).contiguous()


def _fold_unless_common(x: Tensor | None, mapped: int | None, size: int) -> Tensor | None:
    """Leave one for everybody as it is: any number of consecutive batch elements may share it."""
    return x if x is None or (mapped is None and x.shape[0] == 1) else _fold(x, mapped, size)


def _refuse_packing(starts: Tensor | None) -> None:
    if starts is not None:
        raise NotImplementedError("packed sequences under vmap: pack them all into one instead")


@_attention.register_vmap
def _(info, in_dims, q, k, v, bias, padding, multiplier, row_factor, *rest):
    _refuse_packing(rest[0])
    size = info.batch_size
    folded = [_fold(x, d, size) for x, d in zip((q, k, v), in_dims[:3], strict=True)]
    bias = _fold_unless_common(bias, in_dims[3], size)
    padding = _fold_optional(padding, in_dims[4], size)
    multiplier = _fold_unless_common(multiplier, in_dims[5], size)
    row_factor = _fold_unless_common(row_factor, in_dims[6], size)
    results = _attention(*folded, bias, padding, multiplier, row_factor, *rest)
    mapped = [x.ndim > 1 for x in results]  # else there are none: [0]
    unfolded = (
        x.unflatten(0, (size, -1)) if is_mapped else x
        for x, is_mapped in zip(results, mapped, strict=True)
    )
    return tuple(unfolded), tuple(0 if is_mapped else None for is_mapped in mapped)


@_attention_backward.register_vmap
def _(
    info,
    in_dims,
    upstream,
    y,
    total_factor,
    log_sum,
    q,
    k,
    v,
    bias,
    padding,
    multiplier,
    row_factor,
    *rest,
):
    _refuse_packing(rest[0])
    size, given = info.batch_size, (upstream, y, total_factor, log_sum, q, k, v)
    folded = [
        None if x is None else _fold(x, d, size) for x, d in zip(given, in_dims[:7], strict=True)
    ]
    # Here even a common bias is copied: each member of the vmap has a gradient of its own.
    bias = _fold_optional(bias, in_dims[7], size)
    padding = _fold_optional(padding, in_dims[8], size)
    multiplier = _fold_unless_common(multiplier, in_dims[9], size)
    row_factor = _fold_unless_common(row_factor, in_dims[10], size)
    *gradients, dbias = _attention_backward(*folded, bias, padding, multiplier, row_factor, *rest)
    gradients = [gradient.unflatten(0, (size, -1)) for gradient in gradients]
    if dbias.numel() == 0:
        return (*gradients, dbias), (0, 0, 0, None)
    return (*gradients, dbias.unflatten(0, (size, -1))), (0, 0, 0, 0)

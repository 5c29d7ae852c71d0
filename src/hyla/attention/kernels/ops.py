"""The fused kernels as one torch operator: autograd, vmap, autocast, fake tensors, compile.

Under `torch.func.vmap` the mapped axis is folded into the batch, so a population of P models runs
as one launch; a bias of each model's own becomes P biases, each shared by that model's batch.
"""

from dataclasses import fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hyla._compiler_tag import tag_compiled_code
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.choice import KERNELS, why_refused
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.gradients import under_torch_func_grad
from hyla.attention.kernels.packing import Packing, Paging
from hyla.attention.precision import in_autocast_dtype

tag_compiled_code()


def fused_attention(kernel: str, call: Call) -> Tensor:
    """Compute a call by a kernel, differentiable once.

    Sums are float32. Under autocast, q, k and v are cast to its dtype. Raises ValueError with the
    reason where the kernel cannot run; `choose_kernel` tells beforehand.
    """
    call = call.with_operands(*(in_autocast_dtype(x) for x in (call.q, call.k, call.v)))
    reason = why_refused(kernel, call)
    if reason is not None:
        raise ValueError(f"the fused {kernel} kernel cannot run here: {reason}")
    run = _FunctionalAttention.apply if under_torch_func_grad() else _attention
    output, *_ = run(*_flat(kernel, call))
    return output


# ------------------------------------------------------------------ the operators

# A call as an operator takes it: tensors and plain values. `_flat` and `_call` keep its order.
_CALL = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? padding, Tensor? multiplier, "
    "Tensor? row_factor, Tensor? table, Tensor? lengths, "
    "Tensor? query_starts, Tensor? key_starts, "
    "SymInt longest_query, SymInt longest_key, str kernel, "
    "str normalisation, str value, str phi, float scale, float eps, bool causal, "
    "str output, float gain, float output_eps, bool bias_masks, bool deterministic"
)


def _flat(kernel: str, call: Call) -> tuple:
    padding = None if call.padding is None else call.padding.contiguous()
    packing, packed, formula = call.packing, (None, None, 0, 0), call.formula
    paging = call.paging
    paged = (None, None) if paging is None else (paging.table, paging.lengths)
    if packing is not None:
        starts = (packing.query_starts, packing.key_starts)
        packed = (*starts, packing.longest_query, packing.longest_key)
    return (
        *(call.q, call.k, call.v, call.bias, padding, call.multiplier, call.row_factor),
        *(*paged, *packed, kernel, formula.normalisation, formula.value, formula.phi),
        *(formula.scale, formula.eps, formula.causal),
        *(formula.output, formula.gain, formula.output_eps),
        *(call.bias_masks, call.deterministic),
    )


def _call(given: tuple) -> tuple[str, Call]:
    q, k, v, bias, padding, multiplier, row_factor, table, lengths, *packed, kernel = given[:14]
    *formula, bias_masks, deterministic = given[14:]
    call = Call(
        *(q, k, v),
        formula=_formula(*formula),
        bias=bias,
        bias_masks=bias_masks,
        padding=padding,
        multiplier=multiplier,
        packing=None if packed[0] is None else Packing(*packed),
        paging=None if table is None else Paging(table, lengths),
        row_factor=None if row_factor is None else row_factor.contiguous(),
        deterministic=deterministic,
    )
    return kernel, call


@lru_cache  # on the way of every call
def _formula(*values: Any) -> Formula:
    names = (field.name for field in fields(Formula))
    return Formula(**dict(zip(names, values, strict=True)))


# `device_types` is left open: the same operators run wherever a kernel can be launched, which lets
# the tests run a host build of it.
@torch.library.custom_op(
    "hyla::fused_attention", mutates_args=(), schema=f"({_CALL}) -> (Tensor, Tensor, Tensor)"
)
def _attention(*given):
    """Also return what a backward needs of each row, or [0] where it needs none.

    That is what the row was multiplied by [B, Tq], and for a softmax the logarithms of its sums
    [B, Tq, H].
    """
    kernel, call = _call(given)
    formula = call.formula
    total_factor, log_sum = _statistics(call.q, kernel, formula.normalisation, formula.output)
    y = KERNELS[kernel].forward(
        call,
        total_factor=total_factor if total_factor.ndim == 2 else None,
        log_sum=log_sum if log_sum.ndim == 3 else None,
    )
    return y, total_factor, log_sum


@torch.library.custom_op(
    "hyla::fused_attention_backward",
    mutates_args=(),
    schema=f"(Tensor upstream, Tensor? y, Tensor? total_factor, Tensor? log_sum, {_CALL}, "
    "bool bias_gradient) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _attention_backward(upstream, y, total_factor, log_sum, *given):
    """An operator cannot return None: without `bias_gradient`, the last result is empty."""
    *given, bias_gradient = given
    kernel, call = _call(tuple(given))
    host = KERNELS[kernel]
    call, upstream = host.raw_upstream(call, upstream, y, total_factor)
    dq, dk, dv, dbias = host.backward(call, upstream, log_sum=log_sum, bias_gradient=bias_gradient)
    return dq, dk, dv, dbias if dbias is not None else call.q.new_empty(0)


def _statistics(q: Tensor, kernel: str, normalisation: str, output: str) -> tuple[Tensor, Tensor]:
    factors = q.shape[:2] if output == "rms" and kernel != "decode" else (0,)
    sums = q.shape[:3] if "softmax" in normalisation else (0,)
    like = {"dtype": torch.float32, "device": q.device}
    return torch.empty(factors, **like), torch.empty(sums, **like)


# ------------------------------------------------------------------ shapes without values


@_attention.register_fake
def _(q, *rest):
    kernel, normalisation, *_, output, _, _, _, _ = rest[12:]
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
    tensors, options = inputs[:11], inputs[11:]
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
    unused = [None] * (7 + len(ctx.options))  # what masks, multiplies and packs, and no tensors
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


def _folded(given: tuple, in_dims: tuple, size: int, *, common_bias: bool) -> list:
    """Fold the mapped axis of each tensor of a flat call."""
    if any(x is not None for x in given[7:11]):
        raise NotImplementedError("packed or paged sequences under vmap: make them one batch")
    fold_bias = _fold_unless_common if common_bias else _fold_optional
    folds = (_fold, _fold, _fold, fold_bias, _fold_optional, *[_fold_unless_common] * 2)
    tensors = zip(folds, given[:7], in_dims[:7], strict=True)
    return [*(fold(x, mapped, size) for fold, x, mapped in tensors), *given[7:]]


@_attention.register_vmap
def _(info, in_dims, *given):
    size = info.batch_size
    results = _attention(*_folded(given, in_dims, size, common_bias=True))
    mapped = [x.ndim > 1 for x in results]  # else there are none: [0]
    unfolded = (
        x.unflatten(0, (size, -1)) if is_mapped else x
        for x, is_mapped in zip(results, mapped, strict=True)
    )
    return tuple(unfolded), tuple(0 if is_mapped else None for is_mapped in mapped)


@_attention_backward.register_vmap
def _(info, in_dims, *given):
    size = info.batch_size
    kept = [
        None if x is None else _fold(x, mapped, size)
        for x, mapped in zip(given[:4], in_dims[:4], strict=True)
    ]
    # Here even a common bias is copied: each member of the vmap has a gradient of its own.
    call = _folded(given[4:], in_dims[4:], size, common_bias=False)
    *gradients, dbias = _attention_backward(*kept, *call)
    gradients = [gradient.unflatten(0, (size, -1)) for gradient in gradients]
    if dbias.numel() == 0:
        return (*gradients, dbias), (0, 0, 0, None)
    return (*gradients, dbias.unflatten(0, (size, -1))), (0, 0, 0, 0)

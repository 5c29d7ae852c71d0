"""The small-head kernel as a torch operator: autograd, vmap, autocast, fake tensors, compile.

Under `torch.func.vmap` the mapped axis is folded into the batch, so a population of P models runs
as one launch; a bias of each model's own becomes P biases, each shared by that model's batch.
"""

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import GradInterpreter, retrieve_all_functorch_interpreters

from hyla.attention.kernels import small_head
from hyla.attention.kernels.small_head import Formula


def small_head_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    padding: Tensor | None = None,
    causal: bool = False,
    scale: float,
    eps: float,
    normalisation: str,
    value: str,
    phi: str,
    deterministic: bool = False,
) -> Tensor:
    """Fused attention of q [B, Tq, H, D] over k and v [B, Tk, H, D], differentiable once.

    `bias` [Bb, H, Tq, Tk] is added to the scaled scores; each run of B / Bb consecutive batch
    elements shares one. `padding` [B, Tk] is True where a key may be attended to. `causal` lets
    the last query see the last key, the one before it all but the last, and so on. A masked pair
    contributes nothing and receives no gradient, whatever the padded tokens hold.

    Arithmetic is float32 for float32 and bfloat16 inputs. Under autocast, q, k and v are cast to
    its dtype. The bias gradient is summed by atomics unless `deterministic` (or torch's global
    setting) asks for sums in a fixed order.

    Raises ValueError with the reason where the kernel cannot run; `why_unsupported` of
    `hyla.attention.kernels.small_head` tells beforehand.
    """
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    reason = small_head.why_unsupported(
        q, k, v, bias, padding, normalisation=normalisation, value=value, phi=phi
    )
    if reason is not None:
        raise ValueError(f"the fused small-head kernel cannot run here: {reason}")
    run = _FunctionalAttention.apply if _under_torch_func_grad() else _attention
    return run(q, k, v, bias, padding, causal, scale, eps, normalisation, value, phi, deterministic)


# `device_types` is left open: the same operators run wherever `small_head` can launch its kernel,
# which lets the tests run a host build of it.
@torch.library.custom_op("hyla::small_head_attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    causal: bool,
    scale: float,
    eps: float,
    normalisation: str,
    value: str,
    phi: str,
    deterministic: bool,
) -> Tensor:
    formula = Formula(
        normalisation=normalisation, value=value, phi=phi, scale=scale, eps=eps, causal=causal
    )
    return small_head.forward(q, k, v, bias, padding, formula)


@torch.library.custom_op("hyla::small_head_attention_backward", mutates_args=())
def _attention_backward(
    upstream: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    padding: Tensor | None,
    causal: bool,
    scale: float,
    eps: float,
    normalisation: str,
    value: str,
    phi: str,
    deterministic: bool,
    bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An operator cannot return None: without `bias_gradient`, the last result is empty."""
    formula = Formula(
        normalisation=normalisation, value=value, phi=phi, scale=scale, eps=eps, causal=causal
    )
    dq, dk, dv, dbias = small_head.backward(
        upstream,
        q,
        k,
        v,
        bias,
        padding,
        formula,
        bias_gradient=bias_gradient,
        deterministic=deterministic,
    )
    return dq, dk, dv, dbias if dbias is not None else q.new_empty(0)


# ------------------------------------------------------------------ shapes without values


@_attention.register_fake
def _(q, k, v, bias, padding, *options):
    return torch.empty_like(q, memory_format=torch.contiguous_format)


@_attention_backward.register_fake
def _(upstream, q, k, v, bias, padding, *options):
    *_, bias_gradient = options
    gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    if bias is not None and bias_gradient:
        return *gradients, torch.empty_like(bias, memory_format=torch.contiguous_format)
    return *gradients, q.new_empty(0)


# ------------------------------------------------------------------ autograd


def _save(ctx, inputs, output):
    q, k, v, bias, padding, *options = inputs
    ctx.save_for_backward(q, k, v, bias, padding)
    ctx.options = options


def _differentiate(ctx, upstream):
    *tensors, bias, padding = ctx.saved_tensors
    bias_gradient = bias is not None and ctx.needs_input_grad[3]
    run = _FunctionalGradient.apply if _under_torch_func_grad() else _attention_backward
    dq, dk, dv, dbias = run(upstream, *tensors, bias, padding, *ctx.options, bias_gradient)
    unused = [None] * (1 + len(ctx.options))  # padding, and what is not a tensor
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
        raise RuntimeError("small_head_attention has no second derivative: use the reference path")


def _under_torch_func_grad() -> bool:
    if torch.compiler.is_compiling():
        return False
    return any(isinstance(x, GradInterpreter) for x in retrieve_all_functorch_interpreters())


# ------------------------------------------------------------------ vmap


def _fold(x: Tensor, mapped: int | None, size: int) -> Tensor:
    """Fold the mapped axis (or `size` copies, where there is none) into the first."""
    stacked = x.expand(size, *x.shape) if mapped is None else x.movedim(mapped, 0)
    return stacked.flatten(0, 1)


def _fold_optional(x: Tensor | None, mapped: int | None, size: int) -> Tensor | None:
    return None if x is None else _fold(x, mapped, size)


@_attention.register_vmap
def _(info, in_dims, q, k, v, bias, padding, *options):
    size = info.batch_size
    folded = [_fold(x, d, size) for x, d in zip((q, k, v), in_dims[:3], strict=True)]
    # One bias for everybody stays one: consecutive batch elements may share it however many.
    if bias is not None and (in_dims[3] is not None or bias.shape[0] > 1):
        bias = _fold(bias, in_dims[3], size)
    padding = _fold_optional(padding, in_dims[4], size)
    output = _attention(*folded, bias, padding, *options)
    return output.unflatten(0, (size, -1)), 0


@_attention_backward.register_vmap
def _(info, in_dims, upstream, q, k, v, bias, padding, *options):
    size, given = info.batch_size, (upstream, q, k, v)
    folded = [_fold(x, d, size) for x, d in zip(given, in_dims[:4], strict=True)]
    # Here even a common bias is copied: each member of the vmap has a gradient of its own.
    bias = _fold_optional(bias, in_dims[4], size)
    padding = _fold_optional(padding, in_dims[5], size)
    *gradients, dbias = _attention_backward(*folded, bias, padding, *options)
    gradients = [gradient.unflatten(0, (size, -1)) for gradient in gradients]
    if dbias.numel() == 0:
        return (*gradients, dbias), (0, 0, 0, None)
    return (*gradients, dbias.unflatten(0, (size, -1))), (0, 0, 0, 0)

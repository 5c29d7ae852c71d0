"""Cross-entropy of logits that never exist all at once.

The logits of a batch are by far its largest tensor: 131,072 tokens × 32,000 in bf16 are 8 GB, and
their gradient as much again. So a few thousand rows are computed at a time, and since the loss is
the last thing in a model, their gradient is computed on the spot, in the forward pass.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hyla.attention.api import in_autocast_dtype
from hyla.training.compiling import OPTIONS

# Logits computed at a time: 1 GiB in bf16 on a GPU, 128 MiB in float32 on a CPU.
_ELEMENTS = {"cuda": 1 << 29, "cpu": 1 << 25}


def mean_cross_entropy(
    hidden: Float[Tensor, "N E"],
    weight: Float[Tensor, "V E"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
    *,
    rows: int | None = None,
    compile: bool = False,
) -> Float[Tensor, ""]:
    """Return the mean of -log softmax(hidden @ weight.T + bias)[target], with gradients.

    `rows` are computed at a time; as many as memory is meant for, by default.
    """
    rows = _rows_at_once(hidden, weight) if rows is None else rows
    return _MeanCrossEntropy.apply(hidden, weight, bias, targets, rows, compile)  # pyright: ignore


@torch.no_grad()
def cross_entropies(
    hidden: Float[Tensor, "N E"],
    weight: Float[Tensor, "V E"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
    *,
    rows: int | None = None,
) -> Float[Tensor, " N"]:
    """Return -log softmax(hidden @ weight.T + bias)[target] of every row, without gradients."""
    rows = _rows_at_once(hidden, weight) if rows is None else rows
    losses = [
        _losses(_logits(h, weight, bias), t)
        for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    return torch.cat(losses)


def _rows_at_once(hidden: Tensor, weight: Tensor) -> int:
    """Return as many rows as memory is meant for, in parts of equal size."""
    most = max(1, _ELEMENTS.get(weight.device.type, _ELEMENTS["cpu"]) // len(weight))
    parts = -(-len(hidden) // most)
    return -(-len(hidden) // parts)


class _MeanCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        compile: bool,
    ) -> Tensor:
        narrow_weight = in_autocast_dtype(weight)
        total = hidden.new_zeros((), dtype=torch.float32)
        hidden_gradients = []
        weight_gradient = torch.zeros_like(weight)
        bias_gradient = None if bias is None else torch.zeros_like(bias)
        differentiate = _compiled() if compile else _losses_and_gradient
        with torch.autocast(hidden.device.type, enabled=False):
            for h, t in zip(hidden.split(rows), targets.split(rows), strict=True):
                h = h.to(narrow_weight.dtype)
                logits = _logits(h, narrow_weight, bias)
                losses, gradient = differentiate(logits, t, 1 / len(hidden))
                total += losses.sum()
                hidden_gradients.append(gradient @ narrow_weight)
                _add_product_(weight_gradient, gradient.T, h)
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0, dtype=bias_gradient.dtype)
        hidden_gradient = torch.cat(hidden_gradients).to(hidden.dtype)
        ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (scale,) = output_gradients
        scaled = (None if g is None else g.mul_(scale.to(g.dtype)) for g in ctx.saved_tensors)
        return (*scaled, None, None, None)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = hidden @ weight.T
    return logits if bias is None else logits + bias.to(logits.dtype)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    return -torch.log_softmax(logits.float(), 1).gather(1, targets[:, None])[:, 0]


def _losses_and_gradient(logits: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and `scale` times its gradient by the logits."""
    logs = torch.log_softmax(logits.float(), 1)
    losses = -logs.gather(1, targets[:, None])[:, 0]
    columns = torch.arange(logits.shape[1], device=logits.device)
    gradient = logs.exp_().sub_((columns == targets[:, None]).float()).mul_(scale)
    return losses, gradient.to(logits.dtype)


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    return torch.compile(_losses_and_gradient, dynamic=False, options=OPTIONS)


def _add_product_(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `out` without rounding the product to the operands' precision first."""
    if a.dtype == out.dtype:
        out.addmm_(a, b)
    elif a.is_cuda:
        out += torch.mm(a, b, out_dtype=out.dtype)
    else:
        out += a.to(out.dtype) @ b.to(out.dtype)

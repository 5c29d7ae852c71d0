"""Argument checks of `attention`: each error names the argument, what came and what would work."""

import torch
from torch import Tensor

from hyla._errors import check_choice
from hyla.attention.distance import DistanceBias
from hyla.attention.spec import AttentionSpec

BACKENDS = ("auto", "reference", "fused")


def check_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    spec: AttentionSpec,
    eps: float,
    backend: str,
    bias: Tensor | DistanceBias | None = None,
    mask: Tensor | None = None,
    value_weight: Tensor | None = None,
    code_multiplier: Tensor | None = None,
    return_code: bool | Tensor = False,
) -> None:
    """Raise a ValueError for anything `attention` could not compute with."""
    _check_operands(q, k, v)
    B, Tq, H, _ = q.shape
    pairwise = (B, H, Tq, k.shape[1])
    if isinstance(bias, DistanceBias):
        _check_distances(bias.table, (B, H, Tq + k.shape[1] - 1))
        bias = bias.table.new_empty(())  # for its device and dtype, which are checked below
    for name, tensor in (("bias", bias), ("mask", mask), ("code_multiplier", code_multiplier)):
        if tensor is not None:
            if not isinstance(tensor, Tensor):
                raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
            _check_broadcast(name, tensor, pairwise)
            if tensor.device != q.device:
                raise ValueError(f"{name} is on {tensor.device}, but q is on {q.device}; move it")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean with True = attend, got {mask.dtype}; pass mask.bool() for ones "
            "and zeros, mask == 0 for zeros and -inf, and hand finite values to add to bias"
        )
    if bias is not None and not bias.is_floating_point():
        raise ValueError(
            f"bias must be floating point, got {bias.dtype}; a boolean mask is passed as mask"
        )
    _check_value_weight(spec, value_weight, H, v.shape[-1])
    if eps <= 0:
        raise ValueError(f"eps must be positive, got {eps}: heads that are all 0 would give NaN")
    if isinstance(return_code, Tensor):
        _check_pairs(return_code, Tq, k.shape[1])
    check_backend(backend)


def check_backend(backend: str) -> None:
    """Raise a ValueError for a backend that does not exist."""
    check_choice("backend", backend, BACKENDS)


def _check_operands(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.is_nested:
            raise ValueError(
                f"{name} is a nested tensor; hyla.attention.packed_attention takes its "
                "values() and offsets()"
            )
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} must have shape [batch, tokens, heads, head size], "
                f"got {tuple(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}, but q is {q.dtype} on {q.device}; "
                "convert them to the same"
            )
    if 0 in (*q.shape[2:], v.shape[-1]):
        raise ValueError(
            f"heads and head sizes must be positive, got q {tuple(q.shape)} and v {tuple(v.shape)}"
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"k of shape {tuple(k.shape)} does not fit q of shape {tuple(q.shape)}: batch and head "
            "size must agree"
        )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(
            f"k of shape {tuple(k.shape)} does not fit q of shape {tuple(q.shape)}: there must be "
            "as many key heads as query heads or, for grouped-query attention, a divisor of them"
        )
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"v of shape {tuple(v.shape)} does not fit k of shape {tuple(k.shape)}: batch, tokens "
            "and heads must agree; only the head size may differ"
        )


def _check_pairs(pairs: Tensor, queries: int, keys: int) -> None:
    # Values that are not here, or not yet.
    if pairs.device.type != "cpu" or torch.compiler.is_compiling():
        return
    sizes = torch.tensor([queries, keys])
    outside = ((pairs >= sizes) | (pairs < -sizes)).any(dim=1)
    if outside.any():
        raise ValueError(
            f"return_code asks for the pair {tuple(pairs[outside][0].tolist())}, but there are "
            f"{queries} queries and {keys} keys"
        )


def _check_broadcast(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    fits = tensor.ndim <= 4 and all(
        have in (1, want)
        for have, want in zip(reversed(tensor.shape), reversed(shape), strict=False)
    )
    if not fits:
        meant = {
            (shape[0], shape[3]): f"; key padding is passed as {name}[:, None, None, :]",
            (shape[0], *shape[2:]): f"; one for all heads is passed as {name}[:, None]",
        }
        hint = meant.get(tuple(tensor.shape), "")
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} does not broadcast to "
            f"[batch, heads, queries, keys] = {list(shape)}{hint}"
        )


def _check_distances(table: Tensor, shape: tuple[int, int, int]) -> None:
    if not isinstance(table, Tensor):
        raise ValueError(
            f"the table of a DistanceBias must be a torch.Tensor, got {type(table).__name__}"
        )
    want = shape[-table.ndim :]
    fits = (
        table.ndim in (2, 3)
        and table.shape[-1] == want[-1]
        and all(size in (1, of) for size, of in zip(table.shape[:-1], want[:-1], strict=True))
    )
    if not fits:
        raise ValueError(
            f"the table of a DistanceBias has shape {tuple(table.shape)} and must broadcast to "
            f"[batch, heads, queries + keys - 1] = {list(shape)}"
        )


def _check_value_weight(spec: AttentionSpec, weight: Tensor | None, heads: int, size: int) -> None:
    if spec.value == "deep":
        if weight is None or tuple(weight.shape) != (heads, size, size):
            given = "none was given" if weight is None else f"got {tuple(weight.shape)}"
            raise ValueError(
                "value_weight: the deep value network needs weights of shape "
                f"[heads, size, size] = {[heads, size, size]}, {given}; "
                "MultiHeadAttention has its own"
            )
    elif weight is not None:
        raise ValueError(
            f"value_weight is for the deep value network; with value={spec.value!r} leave it out"
        )

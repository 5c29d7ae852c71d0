"""Choice of the plan of a pass for large heads: the first that dtype, device and memory allow."""

import functools

import torch
from torch import Tensor

from hyla.attention.kernels import nvrtc
from hyla.attention.kernels.plans import linear, plain, tensor_core
from hyla.attention.kernels.plans.plain import PlainPlan
from hyla.attention.kernels.plans.tensor_core import TensorCorePlan

CAPABILITY = (8, 0)  # of the GPU: Ampere's, for products and conversions of bfloat16
MAX_HEADS = 64
MAX_WIDTH = 128

Plan = TensorCorePlan | PlainPlan


def choose_plan(pass_name: str, q: Tensor, products: str | None = "hidden") -> Plan:
    """Choose the plan of a pass for heads shaped as in q [B, T, H, D].

    `products` is the value network whose passes on tensor cores may be taken, if there are any.
    """
    heads, width = q.shape[2:]
    plan = _first_plan(pass_name, heads, width, q.dtype, q.device, products)
    if plan is None:
        raise ValueError(f"no plan of the {pass_name} pass fits H = {heads}, D = {width}")
    return plan


def why_too_large(q: Tensor, passes: tuple[str, ...], products: str | None) -> str | None:
    """Say why a GPU has no plan for one of the passes, or return None."""
    return _why_too_large(*_problem(q), passes, products)


def takes_plain(q: Tensor, passes: tuple[str, ...], products: str | None) -> bool:
    """Say whether one of the passes, or all, cannot take tensor cores."""
    return _takes_plain(*_problem(q), passes, products)


def _problem(q: Tensor) -> tuple[int, int, torch.dtype, str, int | None]:
    """Return what the plans of all passes depend on, all constants."""
    heads, width = _settled(q.shape[2], MAX_HEADS), _settled(q.shape[3], MAX_WIDTH)
    return heads, width, q.dtype, q.device.type, q.device.index


def _settled(size: int, largest: int) -> int:
    """Return `size` as a constant, also where a compiler keeps it symbolic."""
    for constant in range(1, largest + 1):
        if constant == size:
            return constant
    return size


@torch.compiler.assume_constant_result
def _why_too_large(
    heads: int,
    width: int,
    dtype: torch.dtype,
    kind: str,
    index: int | None,
    passes: tuple[str, ...],
    products: str | None,
) -> str | None:
    device = torch.device(kind if index is None else f"{kind}:{index}")
    if nvrtc.capability(device) < CAPABILITY:
        return "it needs compute capability 8.0 (Ampere) or newer"
    for name in passes:
        if _first_plan(name, heads, width, dtype, device, products) is None:
            return f"H = {heads} heads of D = {width} do not fit on a multiprocessor"
    return None


@torch.compiler.assume_constant_result
def _takes_plain(
    heads: int,
    width: int,
    dtype: torch.dtype,
    kind: str,
    index: int | None,
    passes: tuple[str, ...],
    products: str | None,
) -> bool:
    device = torch.device(kind if index is None else f"{kind}:{index}")
    plans = (_first_plan(name, heads, width, dtype, device, products) for name in passes)
    return any(plan is None or isinstance(plan, PlainPlan) for plan in plans)


@functools.cache
def _first_plan(
    pass_name: str,
    heads: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    products: str | None,
) -> Plan | None:
    candidates = plain.plans(pass_name, heads, width)
    if dtype in tensor_core.DTYPES and products is not None:
        tiled = linear if products == "linear" else tensor_core
        candidates = (*tiled.plans(pass_name, heads, width), *candidates)
    capability = nvrtc.capability(device)
    candidates = tuple(plan for plan in candidates if plan.runs_on(capability))
    room = nvrtc.shared_memory(device) + nvrtc.RESERVED
    for plan in candidates:
        if plan.blocks * (plan.shared_bytes(pass_name, heads, width) + nvrtc.RESERVED) <= room:
            return plan
    return None

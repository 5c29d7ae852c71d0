"""Which kernel computes a call, and if none, why: the one place that chooses and refuses.

What backend "auto" takes is chosen by shape, from what `hyla bench attention` measured.
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources

import torch
from torch import Tensor

from hyla.attention.kernels import (
    ELSEWHERE,
    ON_REQUEST,
    decode,
    large_head,
    output_stage,
    small_head,
)
from hyla.attention.kernels.call import Call, Kernel
from hyla.attention.kernels.cpu import small_head as small_head_on_cpu
from hyla.attention.kernels.gradients import is_differentiated, why_not_forward_mode
from hyla.attention.kernels.nvrtc import capability

KERNELS: Mapping[str, Kernel] = {
    "small_head": small_head,
    "large_head": large_head,
    # Names of their own, because they have speeds of their own.
    "large_head_plain": large_head,
    "large_head_softmax": large_head,
    "large_head_plain_softmax": large_head,
    "large_head_plain_dropout": large_head,
    "decode": decode,
    "small_head_cpu": small_head_on_cpu,
}

# Every other kernel is taken only once it was measured, and only on such GPUs.
_TAKEN_UNMEASURED = ("small_head", "decode")
_MEASURED_ON = (9, 0)  # compute capability of the table's GPU, an H200


def choose_kernel(call: Call, *, if_faster: bool = False) -> tuple[str | None, str]:
    """Return the kernel for a call, and if there is none, why.

    With `if_faster`, one that was measured to be slower than the reference path is none.
    """
    name, reason = _first_that_fits(call)
    if reason is not None and reason.startswith(ELSEWHERE) and call.q.device.type == "cpu":
        refusal = why_refused("small_head_cpu", call)
        if refusal is None:
            return "small_head_cpu", ""
        reason = f"{reason} (on a CPU: {refusal})"
    if reason is not None and not reason.startswith(ELSEWHERE):
        return None, reason
    if name == "large_head":
        name = large_head.name_by_speed(call)
    # Also of a call that is elsewhere, so that a kernel is promised only where it would be taken.
    slow = why_not_worth_it(name, call.q, call.k) if if_faster else None
    reason = slow or reason
    return (name, "") if reason is None else (None, reason)


def _first_that_fits(call: Call) -> tuple[str, str | None]:
    """Return the first kernel that takes a call, or would on a GPU, and what it says otherwise."""
    if call.paging is not None:
        return "decode", why_refused("decode", call)
    by_width = "small_head" if call.q.shape[-1] <= small_head.MAX_WIDTH else "large_head"
    if call.q.shape[1] != 1:
        return by_width, why_refused(by_width, call)
    decoding = why_refused("decode", call)
    if decoding is None:
        return "decode", None
    reason = why_refused(by_width, call)
    if reason is not None and decoding.startswith(ELSEWHERE):
        return "decode", decoding
    return by_width, reason


def why_refused(kernel: str, call: Call) -> str | None:
    """Say why `kernel` cannot compute the call, or return None if it can."""
    if call.multiplier is not None and is_differentiated(call.multiplier):
        return "the code multiplier has no gradient in the kernels"
    if call.paging is not None and kernel != "decode":
        return "only the decoding kernel reads a cache in pages"
    return (
        why_not_forward_mode(call.q, call.k, call.v, call.bias, call.multiplier)
        or output_stage.why_unfit(call)
        or KERNELS[kernel].why_unsupported(call)
    )


def why_not_worth_it(kernel: str, q: Tensor, k: Tensor) -> str | None:
    """Say why backend "auto" leaves `kernel` alone, or return None if it takes it.

    Shapes have no numbers inside `torch.compile`: there, a kernel that was measured is taken.
    """
    if not _is_known(kernel, q.device.type, q.device.index):
        return f"the {kernel} kernel was not measured on such a GPU yet{ON_REQUEST}"
    if torch.compiler.is_compiling():
        return None
    heads, width = q.shape[2:]
    dtype = str(q.dtype).removeprefix("torch.")
    if _is_faster_nearby(kernel, dtype, heads * width, k.shape[1]):
        return None
    return f"the {kernel} kernel was measured to be slower at such shapes"


@torch.compiler.assume_constant_result
def _is_known(kernel: str, kind: str, index: int | None) -> bool:
    if kernel in _TAKEN_UNMEASURED:
        return True
    device = torch.device(kind if index is None else f"{kind}:{index}")
    on_such_a_gpu = capability(device) >= _MEASURED_ON
    return on_such_a_gpu and any(entry["kernel"] == kernel for entry in _table())


@cache
def _is_faster_nearby(kernel: str, dtype: str, row: int, tokens: int) -> bool:
    """Say whether `kernel` was faster than the reference path at the nearest measured shape."""

    def distance(entry: dict) -> float:
        size = math.log(entry["H"] * entry["D"] / row)
        length = math.log(entry["T"] / max(tokens, 1))
        return abs(size) + abs(length) + (entry["dtype"] != dtype)

    measured = [entry for entry in _table() if entry["kernel"] == kernel]
    if not measured:
        return True
    nearest = min(measured, key=distance)
    return nearest["fused_ms"] <= nearest["reference_ms"]


@cache
def _table() -> list[dict]:
    source = resources.files(__name__.rpartition(".")[0]).joinpath("measured.json")
    return json.loads(source.read_text(encoding="utf-8"))

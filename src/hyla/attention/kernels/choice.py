"""Which kernel backend "auto" takes: by shape, from what `hyla bench attention` measured."""

import json
import math
from functools import cache
from importlib import resources

import torch
from torch import Tensor

from hyla.attention.kernels.large_head import capability

# Every other kernel is taken only once it was measured, and only on such GPUs.
_TAKEN_UNMEASURED = ("small_head", "decode")
_MEASURED_ON = (9, 0)  # compute capability of the table's GPU, an H200


def why_not_worth_it(kernel: str, q: Tensor, k: Tensor) -> str | None:
    """Say why backend "auto" leaves `kernel` alone, or return None if it takes it.

    Shapes have no numbers inside `torch.compile`: there, a kernel that was measured is taken.
    """
    if not _is_known(kernel, q.device.type, q.device.index):
        return f"the {kernel} kernel was not measured on such a GPU yet (backend='fused' takes it)"
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
    source = resources.files("hyla.attention.kernels").joinpath("measured.json")
    return json.loads(source.read_text(encoding="utf-8"))

"""Which kernel backend "auto" takes: by shape, from what `hyla bench attention` measured."""

import json
import math
from functools import cache
from importlib import resources

from torch import Tensor


def is_worth_it(kernel: str, q: Tensor, k: Tensor) -> bool:
    """Say whether `kernel` was faster than the reference path at the nearest measured shape."""
    heads, width = q.shape[2:]
    return _faster_nearby(kernel, heads * width, k.shape[1])


@cache
def _faster_nearby(kernel: str, row: int, tokens: int) -> bool:
    def distance(entry: dict) -> float:
        size = math.log(entry["H"] * entry["D"] / row)
        return abs(size) + abs(math.log(entry["T"] / max(tokens, 1)))

    measured = [entry for entry in _table() if entry["kernel"] == kernel]
    if not measured:
        return True
    nearest = min(measured, key=distance)
    return nearest["fused_ms"] <= nearest["reference_ms"]


@cache
def _table() -> list[dict]:
    source = resources.files("hyla.attention.kernels").joinpath("measured.json")
    return json.loads(source.read_text(encoding="utf-8"))

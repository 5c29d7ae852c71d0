"""Numeric settings of a run: explicit, and only for as long as they are needed."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from hyla._errors import check_choice

# float32 products in full precision; on tensor cores with tf32; or bf16 autocast.
PRECISIONS = ("float32", "tf32", "bf16")


def check_precision(precision: str) -> None:
    """Raise a ValueError for a name that is not of `PRECISIONS`."""
    check_choice("precision", precision, PRECISIONS)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Let float32 matrix products use tf32, or not, inside the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def autocast_dtype(precision: str) -> torch.dtype | None:
    """Return what is computed in under autocast, None without it."""
    return torch.bfloat16 if precision == "bf16" else None


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """Autocast to bf16 if that is the precision, else nothing."""
    dtype = autocast_dtype(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)

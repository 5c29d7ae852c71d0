"""Where models are computed, and when they do not fit there."""

import ctypes
import functools
import gc
import sys

import torch

# Of <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**30


class ModelTooLargeError(RuntimeError):
    """Not even one model fits into the device's memory."""


def resolve_device(device: torch.device | str) -> torch.device:
    """Turn "auto" into the GPU if there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but PyTorch sees no GPU; use cpu")
    return device


def free_memory() -> None:
    """Give a GPU the memory back that populations held which nobody needs any more."""
    gc.collect()  # each refers to itself, through its compiled methods
    torch.cuda.empty_cache()


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep what tensors on the CPU free, for those of the next step.

    By default glibc gives large blocks back at once, and every step then waits for the kernel to
    clear the same pages anew: a tenth to a fifth of its time. Elsewhere this does nothing.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        # Older ones refuse large blocks; and if both are refused, the default is better than half.
        if any(library.mallopt(_MMAP_THRESHOLD, size) for size in (_KEPT_BYTES, 2**25)):
            library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)

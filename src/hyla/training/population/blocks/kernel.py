"""Compiles and starts the kernels of a block, by the names of their sources."""

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from hyla.attention.kernels import nvrtc
from hyla.attention.kernels.formula import PHIS, read_sources
from hyla.training.population.blocks.structures import Line

load_kernel = nvrtc.load_kernel
DEVICES = ("cuda",)
CAPABILITY = (9, 0)  # Hopper, whose products by warpgroups no other generation has

_BELOW = ("phi.cuh", "tensor_core.cuh", "scalars.cuh", "warpgroup.cuh")
_SHARED = ("hopper.cuh", "layout.cuh", "shares.cuh", "rows.cuh", "tiles.cuh")


def why_not_here(device: torch.device) -> str | None:
    """Say why the kernels cannot run on a device, or return None if they can."""
    if device.type not in DEVICES:
        return f"the kernels are for a GPU, and this is {device.type!r}"
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} is not of Nvidia's generation Hopper"
    return nvrtc.why_unavailable()


def start(
    name: str,
    macros: Mapping[str, int],
    arguments: ctypes.Structure,
    device: torch.device,
    *,
    blocks: int,
    threads: int,
    shared_bytes: int = 0,
) -> None:
    """Run the kernel of `name`.cu on torch's current stream."""
    source = read_sources(*_BELOW) + read_sources(*_SHARED, f"{name}.cu", package=__package__)
    definitions = {"PHI": PHIS["gelu_tanh"], **macros}
    kernel = load_kernel(source, f"block_{name}", definitions, device)
    kernel.launch(blocks, threads, arguments, shared_bytes)


def line(x: Tensor, at_once: int, slices: int = 1) -> Line:
    """Divide the tokens of x [P, N, ...] among blocks, so that every multiprocessor has one.

    So many blocks take each token, a slice of something each. A block takes so many tokens
    `at_once`, and is not started for less.
    """
    members, tokens = x.shape[:2]
    fitting = -(-members * tokens // at_once)
    blocks = max(1, min(nvrtc.multiprocessors(x.device) // slices, fitting))
    return Line(members=members, tokens=tokens, blocks=blocks)

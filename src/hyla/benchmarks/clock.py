"""How long work takes."""

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from hyla.training.devices import free_memory

CALLS_PER_GRAPH, REPLAYS = 10, 20
LONG = 0.005  # seconds: such a call needs no company to be timed, and few repetitions


def forget_earlier(device: torch.device) -> None:
    """Let go of what was compiled and allocated before: the next figure is to be its own."""
    torch.compiler.reset()  # the compiler's limit per function counts across populations
    free_memory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def repeated(call: Callable[[], object]) -> Callable[[int], object]:
    """Return what makes n calls, after one that warms up and compiles."""

    def run(calls: int) -> None:
        for _ in range(calls):
            call()

    call()
    return run


def microseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call, replayed from a CUDA graph: no launch overhead is in it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
        side.synchronize()
        long = _elapsed(call) > LONG * 1e3
    torch.cuda.current_stream().wait_stream(side)
    calls, replays = (1, 5) if long else (CALLS_PER_GRAPH, REPLAYS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    times = [_elapsed(graph.replay) for _ in range(replays)]
    return statistics.median(times) * 1e3 / calls


def _elapsed(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def time_both(function: Callable[..., Tensor], leaves: list[Tensor]) -> tuple[float, float]:
    """Return the microseconds of the forward, and of forward and backward."""
    with torch.no_grad():
        upstream = torch.randn_like(function(*leaves))

    def forward() -> Tensor:
        with torch.no_grad():
            return function(*leaves)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*leaves), leaves, upstream)

    return microseconds(forward), microseconds(both)


def peak_mebibytes(function: Callable[..., Tensor], leaves: list[Tensor]) -> float:
    """Return the memory that forward and backward take beyond inputs and gradients."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = function(*leaves)
    torch.autograd.grad(output, leaves, torch.ones_like(output))
    given_back = sum(x.numel() * x.element_size() for x in (output, output, *leaves))
    return (torch.cuda.max_memory_allocated() - before - given_back) / 2**20

"""Benchmarks of kernels on the host build, whose times are made up."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from hyla.attention.kernels import decode, large_head, small_head
from kernel_host import HostBuilds, kept_builds, on_the_host


class OnTheCpu(TorchFunctionMode):
    """Makes on the CPU what is to be made on a GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Return what makes a benchmark call its kernels once, 2 µs forward, 6 µs both passes."""

    def time_both(function, leaves):
        torch.autograd.grad(function(*leaves).sum(), leaves)
        return 2.0, 6.0

    def microseconds(call):
        call()
        return 2.0

    def of(benchmark):
        on_the_host(monkeypatch, HostBuilds(kept_builds()), small_head, large_head, decode)
        monkeypatch.setattr(benchmark, "time_both", time_both)
        monkeypatch.setattr(benchmark, "microseconds", microseconds)

    with OnTheCpu():
        yield of

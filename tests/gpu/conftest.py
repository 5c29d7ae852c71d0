"""Outputs poisoned, float32 products exact."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    """Fill what a kernel is to write with NaN, so that an entry it forgets is seen.

    Not what a compiler traces with, which would have to write these numbers too.
    """
    empty = torch.empty

    def poisoned(*shape, **like):
        fresh = empty(*shape, **like)
        written_later = fresh.is_floating_point() and not fresh.requires_grad
        written_later = written_later and type(fresh) is torch.Tensor
        return fresh.fill_(float("nan")) if written_later else fresh

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(autouse=True)
def _full_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)

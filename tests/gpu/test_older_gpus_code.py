"""What Ampere and Ada would run, on whatever GPU is there: their tiles, without Hopper's stores."""

import pytest
import torch
from kernel_checks import check, normal

from hyla.attention.kernels import large_head, nvrtc
from hyla.attention.kernels.formula import read_sources
from hyla.attention.kernels.plans import large

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[163, 99], ids=["ampere", "ada"])
def older(request, monkeypatch):
    def without_hopper(*names):
        return read_sources(*names).replace("__CUDA_ARCH__ >= 900", "__CUDA_ARCH__ >= 90000")

    monkeypatch.setattr(nvrtc, "shared_memory", lambda device: request.param * 1024)
    monkeypatch.setattr(nvrtc, "capability", lambda device: (8, 0))
    monkeypatch.setattr(large_head, "read_sources", without_hopper)
    large._first_plan.cache_clear()
    yield
    large._first_plan.cache_clear()


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("value", ["hidden", "linear"])
def test_output_and_gradients(dtype, deterministic, value, monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    torch.manual_seed(0)
    for heads, width in ((8, 64), (4, 32)):
        tensors = (normal(2, 130, heads, width, dtype=dtype) for _ in "qkv")
        check(*tensors, causal=True, value=value, phi="silu")

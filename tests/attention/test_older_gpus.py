"""Ampere and Ada, without a GPU: what their shared memory holds, and that all compiles for them."""

import shutil
import subprocess
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from hyla.attention import attention
from hyla.attention.kernels import decode, large_head, nvrtc, output_stage, small_head
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.choice import choose_kernel
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.kernels.plans.plain import PlainPlan
from hyla.attention.kernels.plans.tensor_core import TensorCorePlan
from kernel_host import HostBuilds, needs_host_build, on_the_host


class Gpu(NamedTuple):
    chip: str
    capability: tuple[int, int]
    shared_memory: int  # that a block may have


AMPERE = Gpu("sm_80", (8, 0), 163 * 1024)
ADA = Gpu("sm_89", (8, 9), 99 * 1024)
PASSES = ("forward", "query", "key")
BF16 = torch.bfloat16
HYLA = Formula(
    normalisation="rms_head", value="hidden", phi="relu", scale=0.5, eps=1e-6, causal=True
)


@pytest.fixture(params=[AMPERE, ADA], ids=["ampere", "ada"])
def gpu(request, monkeypatch):
    monkeypatch.setattr(nvrtc, "shared_memory", lambda device: request.param.shared_memory)
    monkeypatch.setattr(large_head, "capability", lambda device: request.param.capability)
    large_head._first_plan.cache_clear()
    yield request.param
    large_head._first_plan.cache_clear()


def plans(heads, width):
    q = torch.zeros(1, 4, heads, width, dtype=BF16)
    return [large_head.choose_plan(name, q) for name in PASSES]


def test_tiles_are_as_large_as_shared_memory_allows(gpu):
    for heads, width in ((4, 64), (8, 32), (8, 64)):
        for name, plan in zip(PASSES, plans(heads, width), strict=True):
            assert isinstance(plan, TensorCorePlan)
            assert plan.shared_bytes(name, heads, width) <= gpu.shared_memory
    if gpu is AMPERE:
        assert [type(plan) for plan in plans(16, 64)] == [TensorCorePlan] * 3
        assert [type(plan) for plan in plans(8, 128)] == [TensorCorePlan, PlainPlan, PlainPlan]
    else:
        with pytest.raises(ValueError, match="no plan of the key pass"):
            plans(16, 64)


@needs_host_build
@pytest.mark.parametrize(("heads", "width"), [(8, 64), (4, 32)])
@pytest.mark.parametrize("name", ["hyla.silu", "linear_rmshead"])
def test_output_and_gradients(name, heads, width, gpu, tmp_path, monkeypatch):
    on_the_host(monkeypatch, HostBuilds(tmp_path), large_head)
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(2, 37, heads, width, generator=generator).to(BF16) for _ in "qkvg"]

    def run(backend, dtype):
        *leaves, upstream = (x.to(dtype) for x in operands)
        leaves = [x.requires_grad_() for x in leaves]
        output = attention(*leaves, attention=name, causal=True, backend=backend)
        return output, *torch.autograd.grad(output, leaves, upstream)

    truths = run("reference", torch.float64)
    for mine, truth in zip(run("fused", BF16), truths, strict=True):
        assert ((mine.double() - truth).norm() / truth.norm()).item() < 2 * 2**-8


class Uncalled:
    def launch(self, *_):
        """Do nothing: the numbers are no matter here."""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's compiler, nvcc")
@pytest.mark.parametrize(
    ("kernel", "value"),
    [
        *[("small_head", "hidden"), ("large_head", "hidden"), ("large_head", "linear")],
        *[("large_head_plain", "hidden"), ("decode", "hidden")],
    ],
)
def test_every_pass_compiles(kernel, value, gpu, tmp_path, monkeypatch):
    passes = set()

    def load_kernel(source, name, macros, device):
        file = tmp_path / f"{name}.cu"
        file.write_text(source, encoding="utf-8")
        command = ["nvcc", "-std=c++17", "-cubin", f"-arch={gpu.chip}", str(file)]
        command += ["-o", str(file.with_suffix(".cubin"))]
        command += [f"-D{key}={value}" for key, value in macros.items()]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        passes.add(macros.get("PASS") if name == kernel.removesuffix("_plain") else name)
        return Uncalled()

    for module in (small_head, large_head, decode, output_stage):
        monkeypatch.setattr(module, "load_kernel", load_kernel)
    for module in (small_head, large_head, decode):
        monkeypatch.setattr(module, "DEVICES", ("cuda", "cpu"))
    heads, width = (16, 4) if kernel == "small_head" else (8, 64)
    dtype = BF16 if kernel in ("large_head", "decode") else torch.float32
    k = v = torch.zeros(2, 17, heads, width, dtype=dtype)
    q = k[:, :1] if kernel == "decode" else k.clone().requires_grad_()
    for deterministic in (False, True):
        call = Call(q, k, v, formula=replace(HYLA, value=value), deterministic=deterministic)
        assert choose_kernel(call) == (kernel, "")
        output = fused_attention(kernel.removesuffix("_plain"), call)
        if q.requires_grad:
            output.sum().backward()
    assert passes == ({None, "output_stage"} if kernel == "decode" else {0, 1, 2})

"""GPUs, without one: what Ampere's and Ada's shared memory holds, and that all kernels compile."""

import functools
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
from hyla.attention.kernels.plans import large
from hyla.attention.kernels.plans.plain import PlainPlan
from hyla.attention.kernels.plans.tensor_core import TensorCorePlan
from kernel_host import needs_host_build, on_the_host


class Gpu(NamedTuple):
    chip: str
    capability: tuple[int, int]
    shared_memory: int  # that a block may have

    def __str__(self):
        return self.chip


AMPERE = Gpu("sm_80", (8, 0), 163 * 1024)
ADA = Gpu("sm_89", (8, 9), 99 * 1024)
HOPPER = Gpu("sm_90a", (9, 0), 227 * 1024)
PASSES = ("forward", "query", "key")
BF16 = torch.bfloat16
HYLA = Formula(
    normalisation="rms_head", value="hidden", phi="relu", scale=0.5, eps=1e-6, causal=True
)


@pytest.fixture(params=[AMPERE, ADA], ids=["ampere", "ada"])
def gpu(request, monkeypatch):
    monkeypatch.setattr(nvrtc, "shared_memory", lambda device: request.param.shared_memory)
    monkeypatch.setattr(nvrtc, "capability", lambda device: request.param.capability)
    large._first_plan.cache_clear()
    yield request.param
    large._first_plan.cache_clear()


@pytest.fixture
def compiler():
    try:
        nvrtc._nvrtc()
    except nvrtc.CudaError as error:
        pytest.skip(str(error))


def plans(heads, width):
    q = torch.zeros(1, 4, heads, width, dtype=BF16)
    return [large.choose_plan(name, q) for name in PASSES]


def test_tiles_are_as_large_as_shared_memory_allows(gpu):
    for heads, width in ((4, 64), (8, 32), (8, 64)):
        for name, plan in zip(PASSES, plans(heads, width), strict=True):
            assert isinstance(plan, TensorCorePlan)
            assert plan.shared_bytes(name, heads, width) <= gpu.shared_memory
    if gpu is AMPERE:
        assert [type(plan) for plan in plans(16, 64)] == [TensorCorePlan] * 3
        assert [type(plan) for plan in plans(8, 128)] == [TensorCorePlan, PlainPlan, PlainPlan]
        # Wide rows are for clusters of blocks, which came with Hopper.
        assert [type(plan) for plan in plans(32, 64)] == [PlainPlan] * 3
    else:
        with pytest.raises(ValueError, match="no plan of the key pass"):
            plans(16, 64)


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), False), ((9, 0), True), ((10, 0), False)]
)
def test_only_hopper_multiplies_by_warpgroups(capability, expected, monkeypatch):
    monkeypatch.setattr(nvrtc, "capability", lambda device: capability)
    large._first_plan.cache_clear()
    plan = plans(8, 64)[0]
    large._first_plan.cache_clear()
    assert isinstance(plan, TensorCorePlan)
    assert plan.warpgroups == expected


@needs_host_build
@pytest.mark.parametrize(("heads", "width"), [(8, 64), (4, 32)])
@pytest.mark.parametrize("name", ["hyla.silu", "linear_rmshead"])
def test_output_and_gradients(name, heads, width, gpu, builds, monkeypatch):
    on_the_host(monkeypatch, builds, large_head)
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


@functools.cache
def compile_once(source, macros, chip):
    nvrtc.compile_cubin(source, dict(macros), chip)


class Member(NamedTuple):
    kernel: str
    heads: int
    width: int
    dtype: torch.dtype
    formula: Formula
    passes: frozenset
    multiplied: bool = False

    def __str__(self):
        formula = self.formula
        names = (formula.normalisation, formula.value, formula.output, str(self.dtype)[6:])
        walk = () if formula.causal else ("one-walk",)
        walk += ("multiplied",) if self.multiplied else ()
        return "-".join((self.kernel, f"{self.heads}x{self.width}", *names, *walk))


def member(kernel, heads, width, dtype=BF16, *, passes=(0, 1, 2), **changes):
    return Member(kernel, heads, width, dtype, replace(HYLA, **changes), frozenset(passes))


def small(passes=(0, 1, 2), **changes):
    return member("small_head", 16, 4, torch.float32, passes=passes, **changes)


MEMBERS = [
    *[small(normalisation=name) for name in small_head.NORMALISATIONS],
    *[
        small(normalisation=name, causal=False, passes=(0, 3))
        for name in ("rms_head", "softmax+rms_head", "rms_head+softmax")
    ],
    *[small(value=value) for value in ("linear", "residual")],
    small(output="rms", passes=(0, 1, 2, "output_stage")),
    *[
        member("large_head", 8, 64, normalisation=name)
        for name in ("rms_head", "none", "softmax", "softmax+rms_head")
    ],
    member("large_head_softmax", 8, 64, passes=range(5), normalisation="rms_head+softmax"),
    member("large_head", 8, 64, output="rms", passes=(0, 1, 2, "output_stage")),
    member("large_head", 8, 64, value="linear"),
    member("large_head_plain", 8, 64, torch.float32),
    member("large_head_plain", 8, 64, torch.float32, value="linear"),
    *[
        member(
            "large_head_plain_softmax", 8, 64, torch.float32, passes=range(5), normalisation=name
        )
        for name in ("softmax", "softmax+rms_head", "rms_head+softmax")
    ],
    member("large_head_plain_dropout", 8, 64, torch.float32)._replace(multiplied=True),
    member("decode", 8, 64, passes=("decode", "output_stage")),
    member("decode", 8, 64, output="rms", passes=("decode", "output_stage")),
]
ON_HOPPER = [  # wide rows; other sizes of scores by warpgroups
    member("large_head", 8, 32),
    *[member("large_head", *shape) for shape in ((16, 64), (32, 64), (16, 128), (32, 128))],
    member("large_head", 32, 64, normalisation="softmax"),
    member("large_head", 16, 128, normalisation="softmax+rms_head"),
    *[
        member("large_head_softmax", *shape, passes=range(5), normalisation="rms_head+softmax")
        for shape in ((16, 64), (32, 64), (32, 128))
    ],
    member("large_head", 32, 128, output="rms", passes=(0, 1, 2, "output_stage")),
]


# By the compiler that users run: nvcc takes functions that it refuses.
@pytest.mark.parametrize(
    ("gpu", "member"),
    [
        *[(gpu, one) for gpu in (AMPERE, ADA, HOPPER) for one in MEMBERS],
        *[(HOPPER, one) for one in ON_HOPPER],
    ],
    indirect=["gpu"],
    ids=str,
)
def test_every_pass_compiles(member, gpu, compiler, monkeypatch):
    passes = set()

    def load_kernel(source, name, macros, device):
        compile_once(source, tuple(sorted(macros.items())), gpu.chip)
        passes.add(macros.get("PASS", name) if name != "output_stage" else name)
        return Uncalled()

    for module in (small_head, large_head, decode, output_stage):
        monkeypatch.setattr(module, "load_kernel", load_kernel)
    for module in (small_head, large_head, decode):
        monkeypatch.setattr(module, "DEVICES", ("cuda", "cpu"))
    kernel, heads, width, dtype, formula, expected, multiplied = member
    k = v = torch.zeros(2, 17, heads, width, dtype=dtype)
    q = k[:, :1] if kernel == "decode" else k.clone().requires_grad_()
    for deterministic in (False, True):
        multiplier = torch.ones(1, 17, 17) if multiplied else None
        options = {"multiplier": multiplier, "deterministic": deterministic}
        call = Call(q, k, v, formula=formula, **options)
        assert choose_kernel(call) == (kernel, "")
        output = fused_attention(kernel, call)
        if q.requires_grad:
            output.sum().backward()
    assert passes == expected

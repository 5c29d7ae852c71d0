"""What goes wrong between threads, without a GPU: every pass of the kernels under `hazards.py`."""

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import test_large_kernel_host as large
import test_one_walk_host as one_walk
import test_small_kernel_host as small
import test_softmax_kernel_host as softmax
import torch
from small_kernel_cases import Case as SmallCase
from small_kernel_cases import draw as draw_small
from small_kernel_cases import fused as fused_small
from small_kernel_cases import use_plan

from hazards import CheckedBuilds
from hyla.attention.kernels import decode, large_head, small_head
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.formula import Formula, read_sources
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.kernels.plans import tensor_core
from kernel_host import kept_builds, needs_host_build, on_the_host

pytestmark = needs_host_build

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = ("output", "dq", "dk", "dv", "dbias")


@pytest.fixture(scope="module")
def builds():
    return CheckedBuilds(kept_builds())


@pytest.fixture(autouse=True)
def host(builds, monkeypatch):
    on_the_host(monkeypatch, builds, small_head, large_head, decode)


def check_in_any_order(builds: CheckedBuilds, run, *, atomic: tuple[str, ...] = ()):
    """Compare all results to the bit, but those that are added up atomically."""
    results = []
    for builds.order in (0, 1):
        results.append(dict(zip(NAMES, run(), strict=False)))
    builds.order = 0
    for name, first in results[0].items():
        if name in atomic:
            error = (results[1][name].float() - first.float()).norm() / first.float().norm()
            assert error < 2**-7, name
        else:
            assert torch.equal(results[1][name], first), name


# ------------------------------------------------------------------ large heads

HYLA = Formula(
    normalisation="rms_head", value="hidden", phi="silu", scale=0.2, eps=1e-6, causal=True
)


def with_gradients(
    H, D, Tq, Tk, B=1, biases=0, padded=False, dropout=False, dtype=BF16, fixed=False, **member
):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    q, k, v = normal(B, Tq, H, D), normal(B, Tk, H, D), normal(B, Tk, H, D)
    options: dict[str, Any] = {"deterministic": fixed}
    if biases:
        options["bias"] = normal(biases, H, Tq, Tk)
    if padded:
        options["padding"] = torch.rand(B, Tk, generator=generator) > 0.3
    if dropout:
        options["multiplier"] = (torch.rand(1, Tq, Tk, generator=generator) > 0.3) / 0.7
    formula = replace(HYLA, **member)
    output = fused_attention("large_head", Call(q, k, v, formula=formula, **options))
    leaves = [x for x in (q, k, v, options.get("bias")) if x is not None]
    return output.detach(), *torch.autograd.grad(output, leaves, normal(*output.shape))


SOFTMAX = {"normalisation": "softmax+rms_head"}
RMS_FIRST = {"normalisation": "rms_head+softmax"}


@pytest.mark.parametrize(
    "case",
    [
        {"H": 8, "D": 32, "Tq": 17, "Tk": 33, "B": 2, "biases": 1, "padded": True},
        {"H": 8, "D": 16, "Tq": 17, "Tk": 17, "fixed": True, "output": "rms", **SOFTMAX},
        {"H": 8, "D": 16, "Tq": 17, "Tk": 33, "padded": True, **RMS_FIRST},
        # Rows that a cluster shares.
        {"H": 12, "D": 100, "Tq": 18, "Tk": 17, "padded": True, "dtype": FP16},
        # Linear value networks.
        {"H": 3, "D": 32, "Tq": 17, "Tk": 33, "biases": 1, "fixed": True, "value": "linear"},
        # Plain arithmetic.
        {"H": 3, "D": 32, "Tq": 9, "Tk": 18, "B": 2, "biases": 1, "dtype": FP32},
        {"H": 3, "D": 16, "Tq": 9, "Tk": 9, "fixed": True, "value": "linear", "dtype": FP32},
        {
            "H": 3,
            "D": 32,
            "Tq": 9,
            "Tk": 18,
            "biases": 1,
            "dropout": True,
            "dtype": FP32,
            **RMS_FIRST,
        },
    ],
    ids=lambda case: "-".join(map(str, case.values())),
)
def test_large_heads(case, builds):
    atomic = () if case.get("fixed") else ("dq", "dbias")
    check_in_any_order(builds, lambda: with_gradients(**case), atomic=atomic)


def test_a_cluster_that_shares_the_forward(builds, monkeypatch):
    plans = tensor_core.plans
    split = [plan for plan in plans("forward", 32, 64) if plan.split > 1]
    monkeypatch.setattr(
        large_head, "choose_plan", lambda name, *_: split[0] if name == "forward" else None
    )
    q = torch.randn(1, 20, 32, 64).to(BF16)
    formula = replace(HYLA, output="rms")
    check_in_any_order(
        builds, lambda: [fused_attention("large_head", Call(q, q, q, formula=formula))]
    )


def forward_by_warpgroups():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, 70, 8, 64, generator=generator).to(BF16) for _ in "qkv")
    plan = large_head.choose_plan("forward", q)
    assert isinstance(plan, tensor_core.TensorCorePlan)
    assert plan.warpgroups
    return large_head.forward(Call(q, k, v, formula=HYLA), plan=plan)


def test_scores_by_warpgroups(builds):
    check_in_any_order(builds, lambda: [forward_by_warpgroups()])


def test_tiles_that_were_not_published_to_warpgroups_are_missed(builds, monkeypatch):
    def without(*names):
        sources = read_sources(*names)
        assert sources.count("        publish_to_async();\n") == 1
        return sources.replace("        publish_to_async();\n", "")

    monkeypatch.setattr(large_head, "read_sources", without)
    with pytest.raises(AssertionError, match="not published"):
        forward_by_warpgroups()


@pytest.mark.parametrize("output", ["plain", "rms"])
def test_decoding_and_the_output_stage(output, builds):
    q, k = torch.randn(2, 1, 8, 64).to(BF16), torch.randn(2, 70, 8, 64).to(BF16)
    formula = replace(HYLA, output=output)
    check_in_any_order(builds, lambda: [fused_attention("decode", Call(q, k, k, formula=formula))])


# ------------------------------------------------------------------ small heads

SMALL = SmallCase(8, 4, 7, 9, lanes=2, rows=2, B=4, biases=2)
WALK = replace(SMALL, Tq=33, Tk=36, by_distance=True, bias_masks=False, B=2, warps=2, lanes=4)


@pytest.mark.parametrize(
    "case",
    [
        replace(SMALL, causal=True, padding=True),
        replace(SMALL, normalisation="softmax+rms_head", deterministic=True, dtype=BF16),
        replace(WALK, normalisation="softmax+rms_head", phi="silu"),
        replace(WALK, warps=1),
    ],
    ids=str,
)
def test_small_heads(case, builds, monkeypatch):
    use_plan(monkeypatch, case)
    given, padding, upstream = draw_small(case)
    q, k, v, bias = leaves = [x.requires_grad_() for x in given]

    def run():
        output = fused_small(case, q, k, v, bias, padding)
        return output.detach(), *torch.autograd.grad(output, leaves, upstream)

    atomic = case.warps == 0 and not case.deterministic
    check_in_any_order(builds, run, atomic=("dbias",) if atomic else ())


# ------------------------------------------------------------------ every shape of the other tests


@pytest.mark.slow
@pytest.mark.parametrize("case", large.CASES, ids=str)
def test_every_shape_of_large_heads(case):
    inputs, padding, upstream = large.draw(case)
    large.with_gradients(large.fused, case, inputs, padding, upstream, case.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("case", softmax.CASES, ids=str)
def test_every_shape_of_softmaxes(case):
    softmax.with_gradients(softmax.fused, case, *softmax.draw(case), case.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*small.CASES, *one_walk.CASES], ids=str)
def test_every_shape_of_small_heads(case, monkeypatch):
    use_plan(monkeypatch, case)
    inputs, padding, upstream = draw_small(case)
    small.with_gradients(fused_small, case, inputs, padding, upstream, case.dtype)


# ------------------------------------------------------------------ that the checker can fail


class Arguments(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p))


SNIPPET = """
#if BROKEN
#define NEEDED(...)
#else
#define NEEDED(...) __VA_ARGS__
#endif
struct Arguments { const float *x; float *y; };
extern "C" __global__ void CLUSTER snippet(const Arguments a) {
    float *own = static_cast<float *>(block_memory());
    const int me = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    %s
}
"""
BROKEN = {
    "a read before a write is over": """
        own[me] = a.x[me]; NEEDED(__syncthreads();) a.y[me] = own[me ^ 32];""",
    # Lanes that exchange numbers have not seen each other's memory.
    "a read before a write is over, line: in a warp": """
        own[me] = a.x[me]; NEEDED(__syncwarp();)
        a.y[me] = __shfl_xor_sync(0xffffffffu, a.x[me], 1) + own[me ^ 1];""",
    "a read before a write is over, line: in a group": """
        own[me] = a.x[me]; NEEDED(group_barrier<64>();) a.y[me] = own[me ^ 32];""",
    "a write before a read is over": """
        own[me] = a.x[me]; __syncthreads(); const float other = own[me ^ 32];
        NEEDED(__syncthreads();) own[me] = 0.f; a.y[me] = other;""",
    "two writes that nothing orders": "if (NEEDED(me == 0 &&) true) own[0] = a.x[me];",
    "a read before a write is over, line: of a copy": """
        if (me < 16) copy_async(shared_address(own + 4 * me), (const Half *)(a.x + 4 * me), true);
        close_copies(); NEEDED(wait_for_copies<0>();) __syncthreads(); a.y[me] = own[me];""",
    "a write before a read is over, line: in bulk": """
        own[me] = a.x[me]; publish_to_async(); __syncthreads();
        if (me == 0) add_in_bulk(a.y, shared_address(own), 256);
        close_bulk(); NEEDED(wait_for_bulk_reads();) __syncthreads(); own[me] = 0.f;
        wait_for_bulk_reads();""",
    "a write before a read is over, line: in bulk, by the next block": """
        own[me] = a.x[me]; publish_to_async(); __syncthreads();
        if (me == 0) add_in_bulk(a.y, shared_address(own), 256);
        close_bulk(); NEEDED(wait_for_bulk_reads();)""",
    "a product, or a read in bulk, of what was not published": """
        own[me] = a.x[me]; NEEDED(publish_to_async();) __syncthreads();
        if (me == 0) add_in_bulk(a.y, shared_address(own), 256);
        close_bulk(); wait_for_bulk_reads();""",
    "a read before a write is over, line: in bulk": """
        own[me] = a.x[me]; publish_to_async(); NEEDED(__syncthreads();)
        if (me == 63) add_in_bulk(a.y, shared_address(own), 256);
        close_bulk(); wait_for_bulk_reads();""",
    "a read of what nobody has written": "NEEDED(own[me] = 0.f;) a.y[me] = own[me];",
    "an access outside": "a.y[me + 1 NEEDED(- 1)] = a.x[me];",
    "an access outside, line: of shared memory": """
        own[me] = a.x[me]; __syncthreads(); a.y[me] = own[me + 1 NEEDED(- 1)];""",
    # Two blocks.
    "two writes that nothing orders, line: in a tensor": "a.y[me NEEDED(+ 64 * block)] = a.x[me];",
    "a read of what nobody has written, line: in a cluster": """
        cluster_barrier(); *in_block(own + me, 1 - block) = a.x[me]; NEEDED(cluster_barrier();)
        a.y[me + 64 * block] = own[me];""",
    "an access outside, line: of a block that may not have begun": """
        NEEDED(cluster_barrier();) *in_block(own + me, 1 - block) = a.x[me]; cluster_barrier();""",
    "an access outside, line: of a block that may have ended": """
        cluster_barrier(); *in_block(own + me, 1 - block) = a.x[me]; NEEDED(cluster_barrier();)""",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_left_out_is_missed(what, builds):
    source = read_sources("phi.cuh", "tensor_core.cuh", "cluster.cuh") + SNIPPET % BROKEN[what]
    blocks = 2 if "block" in BROKEN[what] else 1
    x, y = torch.ones(64), torch.zeros(64 * blocks)

    def launch(broken):
        macros = {"KIND": 0, "PHI": 0, "BROKEN": broken, "CASE": list(BROKEN).index(what)}
        macros["SPLIT"] = blocks if "in_block" in BROKEN[what] else 1
        kernel = builds.load_kernel(source, "snippet", macros, torch.device("cpu"))
        kernel.launch(blocks, 64, Arguments(x.data_ptr(), y.data_ptr()), 4 * 64)

    launch(broken=0)
    with pytest.raises(AssertionError, match=what.partition(",")[0]) as caught:
        launch(broken=1)
    assert "snippet: " in str(caught.value)  # and the lines

"""What becomes of a query's output, in every kernel on a GPU: a gain, given factors, RMS."""

from typing import Any

import pytest
import torch
from kernel_checks import (
    EPS,
    HYLA,
    SCALE,
    captured,
    check,
    fused,
    normal,
    reference,
    with_gradients,
)

from hyla.attention.kernels.call import Call
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.kernels.packing import Packing

pytestmark = pytest.mark.gpu

OUTPUTS = ["plain", "rows", "rms"]
SMOOTH = HYLA | {"phi": "silu"}  # rounding decides nothing
KERNELS = [
    ("small_head", 16, 4, torch.float32),
    ("small_head", 8, 2, torch.bfloat16),
    ("tensor cores", 8, 64, torch.bfloat16),
    ("a cluster of blocks", 16, 128, torch.bfloat16),
    ("plain arithmetic", 8, 64, torch.float32),
]


def stage_of(output, queries, rows=1, gain=1.7) -> dict[str, Any]:
    row_factor = 0.3 + torch.rand(rows, queries, device="cuda") if output == "rows" else None
    return {"output": output, "gain": gain, "row_factor": row_factor}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(("kernel", "heads", "width", "dtype"), KERNELS)
def test_output_and_gradients(kernel, heads, width, dtype, output):
    torch.manual_seed(0)
    for queries, keys, rows in ((37, 37, 1), (33, 70, 4)):
        q, k, v = (normal(4, T, heads, width, dtype=dtype) for T in (queries, keys, keys))
        bias = normal(2, heads, queries, keys, dtype=dtype)
        padding = torch.rand(4, keys, device="cuda") > 0.3
        options = stage_of(output, queries, rows) | {"phi": "silu", "causal": True}
        check(q, k, v, bias, padding=padding, **options)


@pytest.mark.parametrize(
    ("heads", "width", "dtype"),
    [
        (3, 3, torch.float32),
        (5, 24, torch.float16),
        (12, 80, torch.bfloat16),
        (24, 32, torch.bfloat16),
        (32, 128, torch.bfloat16),
    ],
)
def test_rms_of_odd_rows(heads, width, dtype):
    torch.manual_seed(1)
    tensors = [normal(2, 70, heads, width, dtype=dtype) for _ in "qkv"]
    check(*tensors, causal=True, phi="silu", **stage_of("rms", 70))


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("tokens", [300, 1000])  # few parts to sum, and many
def test_decoding(tokens, output):
    torch.manual_seed(2)
    q, k, v = (normal(3, T, 8, 64, dtype=torch.bfloat16) for T in (1, tokens, tokens))
    options: dict[str, Any] = stage_of(output, 1, 3) | SMOOTH
    with torch.no_grad():
        got = fused(q, k, v, **options)
    want = reference(*(x.double() for x in (q, k, v)), **options)
    assert ((got - want).norm() / want.norm()).item() < 2**-8


@pytest.mark.parametrize(("heads", "width", "dtype"), [x[1:] for x in KERNELS])
def test_queries_that_see_no_key(heads, width, dtype):
    torch.manual_seed(3)
    tensors = [*(normal(2, 40, heads, width, dtype=dtype) for _ in "qkv"), None]
    padding = torch.arange(40, device="cuda") >= torch.tensor([[40], [13]], device="cuda")
    options = stage_of("rms", 40) | SMOOTH | {"causal": True}
    upstream = torch.randn_like(tensors[0])
    output, dq, dk, dv = with_gradients(fused, tensors, padding, upstream, dtype, **options)
    for x in (output, dq, dk, dv):
        assert x.isfinite().all()
        assert not x[0].any()
        assert not x[1, :13].any()
    assert output[1, 13:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("output", ["rows", "rms"])
def test_packed_sequences(output, dtype):
    torch.manual_seed(4)
    starts = torch.tensor([0, 5, 5, 135, 200], device="cuda", dtype=torch.int32)
    leaves = [normal(1, 200, 8, 64, dtype=dtype).requires_grad_() for _ in "qkv"]
    stage = stage_of(output, 200)
    rows = stage.pop("row_factor")
    formula = Formula(scale=SCALE, eps=EPS, causal=True, **SMOOTH, **stage)
    options = {"formula": formula, "deterministic": True}
    packing = Packing(starts, starts, 130, 130)
    packed = fused_attention(
        "large_head", Call(*leaves, packing=packing, row_factor=rows, **options)
    )
    upstream = torch.randn_like(packed)
    gradients = torch.autograd.grad(packed, leaves, upstream)
    for a, b in ((0, 5), (5, 135), (135, 200)):
        alone = [x[:, a:b].detach().requires_grad_() for x in leaves]
        own = None if rows is None else rows[:, a:b]
        one = fused_attention("large_head", Call(*alone, row_factor=own, **options))
        torch.testing.assert_close(packed[:, a:b], one)
        parts = torch.autograd.grad(one, alone, upstream[:, a:b])
        torch.testing.assert_close([x[:, a:b] for x in gradients], list(parts))


def test_a_population_whose_members_have_factors_of_their_own():
    torch.manual_seed(5)
    leaves = [normal(3, 2, 36, 16, 4).requires_grad_() for _ in "qkv"]
    rows = torch.rand(3, 1, 36, device="cuda")

    def one(row_factor, q, k, v):
        return fused(q, k, v, output="rows", gain=1.7, row_factor=row_factor, **HYLA)

    stacked = torch.func.vmap(one)(rows, *leaves)
    alone = torch.stack([one(rows[i], *(x[i] for x in leaves)) for i in range(3)])
    torch.testing.assert_close(stacked, alone)
    weight = torch.randn_like(stacked)
    expected = torch.autograd.grad((alone * weight).sum(), leaves)
    got = torch.autograd.grad((stacked * weight).sum(), leaves)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_compiled_and_captured():
    torch.manual_seed(6)
    leaves = [normal(2, 64, 8, 64, dtype=torch.bfloat16).requires_grad_() for _ in "qkv"]
    options: dict[str, Any] = SMOOTH | {"output": "rms", "gain": 1.7}
    options |= {"causal": True, "deterministic": True}

    def layer(q, k, v):
        return fused(q, k, v, **options)

    def step(function):
        output = function(*leaves)
        gradients = torch.autograd.grad(output.float().square().sum(), leaves)
        return output.detach(), *gradients

    eager = step(layer)
    compiled = step(torch.compile(layer, fullgraph=True))
    for mine, truth in zip(compiled, eager, strict=True):
        assert ((mine - truth).norm() / truth.norm()).item() < 1e-2

    graph, replayed = captured(lambda: step(layer))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(mine, truth) for mine, truth in zip(replayed, eager, strict=True))

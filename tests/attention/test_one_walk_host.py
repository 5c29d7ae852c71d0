"""Biases by distance and the backward in one walk, by the host build of the small-head kernel.

Two teams that added to the same number in the same step would lose one of the two sums here, too:
threads take turns between what they read and what they write.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_kernel_cases import (
    Case,
    assert_as_good_as_torch,
    draw,
    fused,
    use_plan,
    with_gradients,
)

from hyla.attention import DistanceBias, attention
from hyla.attention.kernels import small_head
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.plans.one_walk import choose_one_walk, shared_bytes
from hyla.attention.kernels.plans.small import WARP
from kernel_host import needs_host_build, on_the_host

pytestmark = needs_host_build


@pytest.fixture(autouse=True)
def host(builds, monkeypatch):
    on_the_host(monkeypatch, builds, small_head)


DISTANCE: dict[str, Any] = {"by_distance": True, "bias_masks": False}
MEMBERS: list[dict[str, Any]] = [
    {"normalisation": "none", "value": "linear"},
    {"normalisation": "rms_head", "value": "linear"},
    {"normalisation": "none", "value": "hidden", "phi": "silu"},
    {"normalisation": "rms_head", "value": "residual"},
    {"normalisation": "softmax", "value": "linear"},
    {"normalisation": "softmax", "value": "hidden"},
    {"normalisation": "softmax", "value": "residual", "phi": "silu"},
    *(
        {"normalisation": order, "value": value, "phi": "silu"}
        for order in ("softmax+rms_head", "rms_head+softmax")
        for value in ("linear", "hidden", "residual")
    ),
]
CASES = [
    # Two passes, with biases by distance and with nothing that could be masked.
    Case(16, 4, 36, 36, lanes=4, rows=4, biases=1, B=9, **DISTANCE),
    Case(16, 4, 17, 23, lanes=4, rows=2, biases=2, B=18, **DISTANCE, deterministic=True),
    Case(12, 3, 23, 17, lanes=8, rows=4, biases=1, B=5, **DISTANCE, prefetch=True),
    Case(8, 2, 9, 9, rows=4, biases=2, B=4, **DISTANCE, value="linear", normalisation="none"),
    Case(
        16, 4, 15, 15, lanes=4, rows=2, biases=3, B=3, by_distance=True, padding=True, causal=True
    ),
    Case(16, 4, 9, 36, lanes=4, rows=2, biases=1, B=9, bias_masks=False, multipliers=3),
    Case(3, 3, 15, 2, lanes=2, rows=4, biases=1, B=17, bias_masks=False),
    *(
        Case(8, 4, 5, 17, lanes=2, rows=2, biases=1, B=3, **DISTANCE, normalisation=name)
        for name in ("softmax", "softmax+rms_head", "rms_head+softmax")
    ),
    # One walk: tiles that fill all teams, that are left over, and that several teams share.
    Case(16, 4, 36, 36, lanes=4, rows=4, warps=2, B=4, biases=2, **DISTANCE),
    Case(16, 4, 36, 36, lanes=4, rows=4, warps=4, B=2, biases=1, **DISTANCE, phi="gelu"),
    Case(16, 4, 17, 23, lanes=4, rows=2, warps=1, B=2, biases=1, **DISTANCE, phi="silu"),
    Case(16, 4, 16, 15, lanes=4, rows=2, warps=2, B=3, biases=3, **DISTANCE),
    Case(16, 4, 19, 1, lanes=4, rows=2, warps=2, B=2, biases=1, **DISTANCE),
    Case(8, 2, 33, 33, rows=4, warps=1, B=2, biases=1, **DISTANCE, phi="gelu_tanh"),
    Case(8, 2, 17, 40, lanes=2, rows=4, warps=1, B=2, biases=1, **DISTANCE),
    Case(64, 4, 16, 9, lanes=16, rows=4, warps=8, B=2, biases=1, **DISTANCE),
    Case(32, 4, 18, 36, lanes=8, rows=4, warps=4, B=2, biases=1, **DISTANCE),
    Case(12, 3, 21, 20, lanes=4, rows=2, warps=2, B=2, biases=1, **DISTANCE),
    Case(4, 16, 9, 8, lanes=4, rows=2, warps=1, B=2, biases=1, **DISTANCE),
    Case(16, 4, 17, 16, lanes=4, rows=2, warps=2, B=2),
    Case(16, 4, 17, 20, lanes=4, rows=2, warps=2, B=4, biases=2, by_distance=True, padding=True),
    Case(16, 4, 17, 20, lanes=4, rows=2, warps=2, B=6, biases=2, multipliers=3, **DISTANCE),
    *(
        replace(Case(16, 4, 17, 22, lanes=4, rows=2, warps=2, biases=1, **DISTANCE), **member)
        for member in MEMBERS
    ),
    *(
        Case(16, 4, 17, 21, lanes=4, rows=2, warps=2, padding=True, normalisation=name)
        for name in ("softmax", "softmax+rms_head", "rms_head+softmax")
    ),
    Case(16, 4, 17, 21, lanes=4, rows=2, warps=1, B=4, multipliers=2, normalisation="softmax"),
    Case(16, 4, 17, 20, lanes=4, rows=2, warps=2, biases=1, **DISTANCE, dtype=torch.bfloat16),
    Case(8, 2, 33, 9, rows=4, warps=1, biases=1, **DISTANCE, dtype=torch.bfloat16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_match_the_reference(case, monkeypatch):
    use_plan(monkeypatch, case)
    assert_as_good_as_torch(case, *draw(case))


WALK = Case(16, 4, 17, 20, lanes=4, rows=2, warps=2, B=4, biases=2, by_distance=True)


@pytest.mark.parametrize(
    "member",
    [
        *({}, {"value": "linear"}),
        *({"normalisation": name} for name in ("softmax", "softmax+rms_head", "rms_head+softmax")),
    ],
    ids=str,
)
@pytest.mark.parametrize("warps", [0, 2])
def test_a_distance_with_a_bias_of_minus_infinity_is_masked(warps, member, monkeypatch):
    case = replace(WALK, warps=warps, **member)
    use_plan(monkeypatch, case)
    (q, k, v, bias), _, upstream = draw(case)
    masked = torch.rand(bias.shape, generator=torch.Generator().manual_seed(2)) > 0.6
    inputs = (q, k, v, bias.masked_fill(masked, -torch.inf))
    assert_as_good_as_torch(case, inputs, None, upstream)
    *_, dbias = with_gradients(fused, case, inputs, None, upstream, torch.float32)
    assert not dbias[masked].any()


@pytest.mark.parametrize("value", ["hidden", "linear"])
def test_a_nan_of_one_member_stays_there(value, monkeypatch):
    for case in (replace(WALK, value=value), replace(WALK, value=value, warps=0, B=18)):
        case = replace(case, bias_masks=False)
        use_plan(monkeypatch, case)
        (q, k, v, bias), _, upstream = draw(case)
        v[0] = torch.nan  # of the first bias's sequences
        results = with_gradients(fused, case, (q, k, v, bias), None, upstream, torch.float32)
        half = case.B // 2
        assert all(x[half:].isfinite().all() for x in results[:4])
        assert results[4][0].isnan().any()
        assert results[4][1].isfinite().all()


def test_padded_tokens_do_not_matter_even_if_they_are_nan(monkeypatch):
    case = replace(WALK, padding=True)
    use_plan(monkeypatch, case)
    (q, k, v, bias), padding, upstream = draw(case)
    padding[0] = False
    clean = with_gradients(fused, case, (q, k, v, bias), padding, upstream, torch.float32)
    k, v = (x.masked_fill(~padding[:, :, None, None], float("nan")) for x in (k, v))
    dirty = with_gradients(fused, case, (q, k, v, bias), padding, upstream, torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(clean, dirty, strict=True))


def test_layouts_of_the_inputs_do_not_matter(monkeypatch):
    case = replace(WALK, bias_masks=False)
    use_plan(monkeypatch, case)
    inputs, _, upstream = draw(case)
    expected = with_gradients(fused, case, inputs, None, upstream, torch.float32)
    storage = torch.zeros(upstream.numel() + 1)
    misaligned = storage[1:].view(upstream.shape).copy_(upstream)
    got = with_gradients(fused, case, inputs, None, misaligned, torch.float32)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_a_population_by_vmap(monkeypatch):
    case = replace(WALK, biases=1, B=2, bias_masks=False)
    use_plan(monkeypatch, case)
    draws = [draw(case, seed)[0] for seed in range(3)]
    leaves = [torch.stack(x).requires_grad_() for x in zip(*draws, strict=True)]

    def one(q, k, v, bias):
        return fused(case, q, k, v, bias)

    stacked = torch.func.vmap(one)(*leaves)
    alone = torch.stack([one(*(x[i] for x in leaves)) for i in range(3)])
    torch.testing.assert_close(stacked, alone)
    weight = torch.randn_like(stacked)
    expected = torch.autograd.grad((alone * weight).sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad((stacked * weight).sum(), leaves), expected)

    def loss(bias, q):  # a table that is common to all
        return one(q, leaves[1][0], leaves[2][0], bias).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(leaves[3][0], leaves[0])
    for i in range(3):
        torch.testing.assert_close(each[i], torch.func.grad(loss)(leaves[3][0], leaves[0][i]))


def test_attention_takes_a_bias_by_distance():
    generator = torch.Generator().manual_seed(0)
    q, k, v, weight = (torch.randn(2, 17, 16, 4, generator=generator) for _ in "qkvw")
    table = torch.randn(16, 33, generator=generator)
    leaves = [x.requires_grad_() for x in (q, k, v, table)]

    def run(backend, bias):
        output = attention(q, k, v, bias=bias, bias_masks=False, backend=backend)
        return output, *torch.autograd.grad((output * weight).sum(), leaves)

    expected = run("reference", DistanceBias(table).for_pairs(17))
    for backend in ("reference", "fused"):
        torch.testing.assert_close(
            run(backend, DistanceBias(table)), expected, rtol=1e-4, atol=1e-4
        )
    # Grouped by a batch axis, with one head for all; and a single query, which decodes.
    shared = torch.randn(2, 1, 33, generator=generator)
    options = {"bias": DistanceBias(shared), "return_code": True}
    by_kernel = attention(q, k, v, **options, backend="fused")
    torch.testing.assert_close(by_kernel, attention(q, k, v, **options), rtol=1e-4, atol=1e-4)


def formula(**changes):
    member = {"normalisation": "rms_head", "value": "hidden", "phi": "relu"}
    return Formula(**{"scale": 1.0, "eps": 1e-6, "causal": False, **member, **changes})


def call_of(B, Tq, Tk, H, D, *, bias=True, **changes):
    def empty(*shape):
        return torch.zeros(()).expand(*shape)

    table = empty(1, H, Tq + Tk - 1) if bias else None
    operands = (empty(B, T, H, D) for T in (Tq, Tk, Tk))
    return Call(*operands, formula=formula(**changes), bias=table, bias_masks=False)


ROOM = 227 * 1024


def test_plans_fit_the_machine():
    for H, D in ((16, 4), (32, 4), (64, 4), (8, 2), (1, 16), (12, 4), (10, 4), (16, 16), (64, 16)):
        for B in (1, 128, 1536):
            for Tq, Tk in ((36, 36), (4, 36), (97, 97), (16, 200), (1000, 1000)):
                for normalisation in ("rms_head", "softmax"):
                    call = call_of(B, Tq, Tk, H, D, normalisation=normalisation)
                    plan = choose_one_walk(call, ROOM)
                    if plan is None:
                        continue
                    assert H % plan.lanes == 0
                    assert plan.threads // plan.lanes <= Tq
                    assert plan.threads * plan.blocks <= 8 * WARP  # of up to 255 registers
                    assert H // plan.lanes * D <= 16
                    assert shared_bytes(plan, call) <= ROOM


def test_what_takes_one_walk():
    def plan(*shape, **options):
        return choose_one_walk(call_of(*shape, **options), ROOM)

    sraven = plan(1536, 36, 36, 16, 4)
    assert (sraven.lanes, sraven.threads, sraven.blocks) == (4, 2 * WARP, 4)
    assert plan(1536, 36, 36, 64, 4).threads == 8 * WARP
    assert plan(1536, 33, 33, 8, 2).lanes == 1
    assert plan(1536, 36, 36, 16, 4, causal=True) is None
    assert plan(1536, 4, 36, 16, 4).lanes == 8  # as many teams as there are queries
    assert plan(1536, 1, 36, 16, 4) is None
    assert plan(1536, 1024, 1024, 16, 4) is None  # shared memory
    assert choose_one_walk(call_of(1536, 36, 36, 16, 4), 48 * 1024) is None
    by_pair = replace(call_of(2, 36, 36, 16, 4), bias=torch.zeros(1, 16, 36, 36))
    assert choose_one_walk(by_pair, ROOM) is None

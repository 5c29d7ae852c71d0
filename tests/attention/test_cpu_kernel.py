"""The kernel for small heads on a CPU, by what the small-head kernel on GPUs is held to."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import small_kernel_cases
import test_one_walk_host as one_walk
import test_small_kernel_host as small
import torch
from small_kernel_cases import Case, assert_as_good_as_torch, draw, fused, with_gradients

from hyla.attention import DistanceBias, attention, explain
from hyla.attention.kernels import output_stage
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.cpu import compiler, small_head
from hyla.attention.kernels.formula import Formula
from kernel_host import forget_libraries, kept_builds

pytestmark = pytest.mark.skipif(
    compiler.why_unavailable() is not None, reason="the kernel on a CPU needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(small_kernel_cases, "KERNEL", "small_head_cpu")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept_builds()))


NAMES = ("output", "dq", "dk", "dv", "dbias")


def features() -> list[str]:
    """Return what this CPU says that it can do."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.read_text(encoding="utf-8").split() if cpuinfo.exists() else []


def once(cases: list[Case]) -> list[Case]:
    """Return those in float32, without the plans that are a GPU's."""
    plain = {"lanes": 1, "rows": 1, "warps": 0, "prefetch": False, "deterministic": False}
    kept = (replace(case, **plain) for case in cases if case.dtype == torch.float32)
    return list(dict.fromkeys(kept))


SOME = [
    *(Case(16, 4, 36, 36, biases=1, B=9, by_distance=by_distance) for by_distance in (True, False)),
    Case(1, 2, 1, 1),
    Case(3, 3, 2, 2, phi="gelu"),
    Case(12, 3, 7, 9, biases=1, B=5, normalisation="none", phi="silu"),
    Case(8, 2, 33, 17, causal=True, padding=True, biases=2, B=4, phi="gelu_tanh"),
    Case(64, 4, 17, 18, biases=1, B=3, by_distance=True, bias_masks=False),
    Case(16, 16, 3, 4, value="linear", multipliers=2),
    Case(8, 2, 16, 1, biases=2, B=4, multipliers=4),
    Case(8, 2, 9, 20, value="residual", biases=2, B=4, multipliers=1, phi="silu"),
    *(
        Case(8, 4, 9, 17, normalisation=name, value=value, biases=1, B=3, causal=True)
        for name in ("softmax", *small.BOTH_ORDERS)
        for value in ("hidden", "linear", "residual")
    ),
]
MEMBERS = [{**member, "phi": "silu"} for member in small.MEMBERS]


@pytest.mark.parametrize("case", SOME, ids=str)
def test_output_and_gradients_match_the_reference(case):
    assert_as_good_as_torch(case, *draw(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", once([*small.CASES, *one_walk.CASES]), ids=str)
def test_every_shape_of_the_kernel_on_gpus(case):
    assert_as_good_as_torch(case, *draw(case))


@pytest.mark.parametrize("without", [kind for kind in ("avx512f", "avx") if kind in features()])
def test_narrower_vectors_than_this_cpu_has(without, monkeypatch):
    monkeypatch.setattr(compiler, "_OPTIONS", (*compiler._OPTIONS, f"-mno-{without}"))
    forget_libraries()
    for case in SOME[:2]:
        assert_as_good_as_torch(case, *draw(case))
    forget_libraries()


@pytest.mark.parametrize(
    "case", once([replace(small.MASKING, **member) for member in MEMBERS]), ids=str
)
def test_a_bias_of_minus_infinity_masks_the_pair(case, monkeypatch):
    small.test_a_bias_of_minus_infinity_masks_the_pair(case, monkeypatch)


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: "-".join(member.values()))
def test_not_even_a_nan_comes_from_a_later_token(member, monkeypatch):
    small.test_not_even_a_nan_comes_from_a_later_token(member, 1, monkeypatch)


@small.each
def test_padded_tokens_do_not_matter_even_if_they_are_nan(case, monkeypatch):
    small.test_padded_tokens_do_not_matter_even_if_they_are_nan(case, monkeypatch)


@pytest.mark.parametrize("normalisation", ["softmax", *small.BOTH_ORDERS])
def test_softmax_of_queries_that_see_no_key(normalisation, monkeypatch):
    small.test_softmax_of_queries_that_see_no_key(
        "hidden", normalisation, torch.float32, monkeypatch
    )


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_softmax_of_scores_of_any_size(scale, monkeypatch):
    small.test_softmax_of_scores_of_any_size(scale, monkeypatch)


def test_relu_hides_no_nan(monkeypatch):
    small.test_relu_hides_no_nan("hidden", monkeypatch)


@pytest.mark.parametrize("bias_masks", [True, False])
def test_a_bias_of_nan_is_not_taken_for_a_mask(bias_masks):
    q, k, v = torch.randn(3, 1, 5, 4, 4)
    bias = torch.zeros(1, 4, 5, 5)
    bias[0, 1, 2, 3] = float("nan")
    y = attention(q, k, v, bias=bias, bias_masks=bias_masks, backend="fused")
    assert y.isnan().all(dim=(0, 2, 3)).tolist() == [False, False, True, False, False]
    assert not y[:, [0, 1, 3, 4]].isnan().any()


@pytest.mark.parametrize(("B", "Tq", "Tk"), [(0, 3, 3), (2, 0, 3), (2, 3, 0)])
def test_empty_axes(B, Tq, Tk, monkeypatch):
    small.test_empty_axes(small.SOFTMAX, B, Tq, Tk, monkeypatch)


@small.either
def test_a_population_is_folded_into_the_batch(case, monkeypatch):
    small.test_vmap_folds_a_population_into_the_batch(case, monkeypatch)


def test_what_is_common_to_all_members_of_a_population(monkeypatch):
    small.test_vmap_with_what_is_common_to_all_members(1, monkeypatch)


@pytest.mark.parametrize("name", ["hyla.rms4", "hyla.expected2", "hyla.plain8", "softmax.expected"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [6, 2])
def test_outputs_are_scaled_and_keys_shared(name, causal, key_heads):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(4, 19, 6, 4, generator=generator)
    k, v = torch.randn(2, 4, 19, key_heads, 4, generator=generator)
    table, upstream = (
        torch.randn(6, 37, generator=generator),
        torch.randn(q.shape, generator=generator),
    )
    found = []
    for dtype, backend in ((torch.float64, "reference"), (torch.float32, "fused")):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, table)]
        *operands, distances = leaves
        options = {"bias": DistanceBias(distances), "bias_masks": False, "causal": causal}
        assert backend == "reference" or (
            explain(*operands, attention=name, backend=backend, **options).path == "small_head_cpu"
        )
        y = attention(*operands, attention=name, backend=backend, **options)
        found.append([y, *torch.autograd.grad(y, leaves, upstream.to(dtype))])
    for truth, mine in zip(*found, strict=True):
        assert mine.shape == truth.shape
        assert (mine - truth).abs().max() < 1e-5 * truth.abs().max()


def test_threads_share_the_work(monkeypatch):
    case = Case(8, 4, 20, 20, B=12, biases=3, by_distance=True)
    inputs, padding, upstream = draw(case)
    alone = with_gradients(fused, case, inputs, padding, upstream, torch.float32)
    monkeypatch.setattr(small_head, "_WORTH_THREADS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    launched = []
    monkeypatch.setattr(
        small_head,
        "_launch",
        lambda *a, of=small_head._launch: (launched.append(a[2].threads), of(*a)),
    )
    together = with_gradients(fused, case, inputs, padding, upstream, torch.float32)
    assert launched == [5, 5]
    for name, one, five in zip(NAMES, alone, together, strict=True):
        assert torch.equal(one, five), name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.bfloat16}, "it takes float32, got torch.bfloat16"),
        ({"D": 17}, "it takes head sizes up to 16"),
    ],
)
def test_what_it_does_not_take_is_said(change, reason):
    case = replace(Case(3, 4, 5, 5), **change)
    (q, k, v, _), *_ = draw(case)
    with pytest.raises(ValueError, match=rf"one CUDA device, got cpu \(on a CPU: {reason}"):
        attention(q, k, v, backend="fused")


def outcome(q, k, v, table, *, backend: str, dtype: torch.dtype, **options) -> list[torch.Tensor]:
    """Return the output and the gradients of all four."""
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, table)]
    y = attention(*leaves[:3], bias=DistanceBias(leaves[3]), backend=backend, **options)
    return [y, *torch.autograd.grad(y.square().sum(), leaves)]


@pytest.mark.parametrize(
    "name", ["hyla_minus_rmshead_plus_softmax", "hyla_plus_softmax", "hyla_plus_softmax_last"]
)
@pytest.mark.parametrize("bias", [50.0, 100.0])
@pytest.mark.parametrize("queries", [3, 17])
def test_lanes_beyond_the_last_query_leave_no_trace(name, bias, queries):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, queries, 4, 4, generator=generator)
    k, v = torch.randn(2, 2, queries + 1, 4, 4, generator=generator)
    inputs = (q, k, v, torch.full((4, 2 * queries), bias))
    exact = outcome(*inputs, backend="reference", dtype=torch.float64, attention=name)
    ours = outcome(*inputs, backend="fused", dtype=torch.float32, attention=name)
    for what, truth, mine in zip(NAMES, exact, ours, strict=True):
        assert (mine - truth).abs().max() < 1e-4 * truth.abs().max(), what


@pytest.mark.parametrize("by_distance", [True, False])
def test_another_default_dtype_changes_nothing(by_distance):
    case = Case(4, 4, 7, 9, biases=1, B=6, by_distance=by_distance)
    inputs, padding, upstream = draw(case)
    usual = with_gradients(fused, case, inputs, padding, upstream, torch.float32)
    torch.set_default_dtype(torch.float64)
    try:
        other = with_gradients(fused, case, inputs, padding, upstream, torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    for what, one, two in zip(NAMES, usual, other, strict=True):
        assert torch.equal(one, two), what


def test_a_member_has_the_same_gradients_in_every_population():
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 5, 40, 9, 4, 4, generator=generator)
    tables = torch.randn(5, 4, 17, generator=generator)

    def gradients(*members):
        def loss(q, k, v, table):
            return attention(q, k, v, bias=DistanceBias(table), backend="fused").square().sum()

        return torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3)))(*members)

    together = gradients(q, k, v, tables)
    alone = gradients(*(x[2:3] for x in (q, k, v, tables)))
    for what, one, of_five in zip(NAMES[1:], alone, together, strict=True):
        assert torch.equal(one[0], of_five[2]), what


HYLA = Formula(
    normalisation="rms_head", value="hidden", phi="relu", scale=1, eps=1e-6, causal=False
)


def unread(*shape: int) -> torch.Tensor:
    return torch.empty(1).expand(shape)


def test_gradients_of_large_biases_are_kept_in_few_parts():
    biases = [unread(1, 8, tokens, tokens) for tokens in (36, 256, 2048)]
    assert [small_head._most_parts(bias) for bias in biases] == [32, 16, 1]


@pytest.mark.parametrize("by_distance", [True, False])
def test_lanes_without_a_query_leave_no_nan(by_distance):
    """Three queries in a vector: what the other lanes make of an infinite value is nobody's."""
    shape = (2, 4, 8) if by_distance else (2, 4, 3, 6)
    q, k, v = torch.randn(2, 3, 4, 4), torch.randn(2, 6, 4, 4), torch.randn(2, 6, 4, 4)
    v[0, 2, 1, 3] = math.inf
    numbers = torch.randn(shape)

    def count(backend: str) -> int:
        given = numbers.clone().requires_grad_()
        bias = DistanceBias(given) if by_distance else given
        attention(q, k, v, bias=bias, bias_masks=False, backend=backend).sum().backward()
        return int(given.grad.isnan().sum())

    assert count("fused") == count("reference") < numbers.numel()


def test_gradients_of_biases_of_one_part_are_right(monkeypatch):
    monkeypatch.setattr(small_head, "_MOST_IN_SLABS", 1)
    case = Case(8, 4, 9, 17, biases=2, B=6)
    assert_as_good_as_torch(case, *draw(case))


def test_a_softmax_over_too_many_keys_is_refused():
    q, k = unread(1, 1, 16, 4), unread(1, 100_000, 16, 4)
    softmax = replace(HYLA, normalisation="softmax+rms_head")
    refused = small_head.why_unsupported(Call(q, k, k, formula=softmax))
    assert "299 MiB for the codes of 100000 keys" in (refused or "")
    assert small_head.why_unsupported(Call(q, k, k, formula=HYLA)) is None


def test_a_gain_of_zero_has_a_gradient_of_zero():
    q = torch.randn(2, 3, 4, 4)
    call = Call(q, q, q, formula=replace(HYLA, output="rms", gain=0.0))
    _, raw = output_stage.raw_upstream_by_torch(call, q, torch.zeros_like(q), torch.zeros(2, 3))
    assert torch.equal(raw, torch.zeros_like(q))

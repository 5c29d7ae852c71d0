"""The kernel for small heads on a CPU, by what the small-head kernel on GPUs is held to."""

from dataclasses import replace
from pathlib import Path

import pytest
import small_kernel_cases
import test_one_walk_host as one_walk
import test_small_kernel_host as small
import torch
from small_kernel_cases import Case, assert_as_good_as_torch, draw, fused, with_gradients

from hyla.attention import DistanceBias, attention, explain
from hyla.attention.kernels.cpu import compiler, small_head
from kernel_host import kept_builds

pytestmark = pytest.mark.skipif(
    compiler.why_unavailable() is not None, reason="the kernel on a CPU needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(small_kernel_cases, "KERNEL", "small_head_cpu")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept_builds()))


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


@pytest.mark.parametrize("kind", ["-mno-avx512f", "-mno-avx"])
def test_vectors_of_any_width(kind, monkeypatch):
    if not {"avx512f", "avx"} & set(Path("/proc/cpuinfo").read_text().split()):
        pytest.skip("this CPU has no wider vectors")
    monkeypatch.setattr(compiler, "_OPTIONS", (*compiler._OPTIONS, kind))
    compiler._load.cache_clear()
    for case in SOME[:2]:
        assert_as_good_as_torch(case, *draw(case))
    compiler._load.cache_clear()


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
    for name, one, five in zip(("output", "dq", "dk", "dv"), alone, together, strict=False):
        assert torch.equal(one, five), name
    torch.testing.assert_close(together[-1], alone[-1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.bfloat16}, "on a CPU it takes float32, got torch.bfloat16"),
        ({"D": 17}, "it takes head sizes up to 16"),
    ],
)
def test_what_it_does_not_take_is_said(change, reason):
    case = replace(Case(3, 4, 5, 5), **change)
    (q, k, v, _), *_ = draw(case)
    with pytest.raises(ValueError, match=rf"one CUDA device, got cpu \(on a CPU: {reason}"):
        attention(q, k, v, backend="fused")


# ------------------------------------------------------------------ the compiler


@pytest.fixture
def fresh_compiler(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    caches = (compiler._why_unavailable, compiler._load, compiler._compiler, compiler._machine)
    for cache in caches:
        cache.cache_clear()
    yield compiler
    for cache in caches:
        cache.cache_clear()


SEVEN = 'extern "C" int number() { return NUMBER; }'


def compilations(monkeypatch) -> list[str]:
    sources = []
    compile_one = compiler._compile

    def counted(source, *rest):
        sources.append(source)
        compile_one(source, *rest)

    monkeypatch.setattr(compiler, "_compile", counted)
    return sources


def test_what_was_compiled_is_kept(fresh_compiler, monkeypatch):
    compiled = compilations(monkeypatch)
    for _ in range(2):
        assert compiler.load_library(SEVEN, {"NUMBER": 7}).number() == 7
        compiler._load.cache_clear()
    assert compiler.load_library(SEVEN, {"NUMBER": 8}).number() == 8
    assert len(compiled) == 2


def test_a_torn_library_is_compiled_anew(fresh_compiler, monkeypatch, tmp_path: Path):
    compiled = compilations(monkeypatch)
    compiler.load_library(SEVEN, {"NUMBER": 7})
    (kept,) = tmp_path.rglob("*.so")
    kept.unlink()
    kept.write_bytes(b"\x7fELF, and no more")
    compiler._load.cache_clear()
    for _ in range(2):
        assert compiler.load_library(SEVEN, {"NUMBER": 7}).number() == 7
        compiler._load.cache_clear()
    assert len(compiled) == 2


def test_where_nothing_can_be_kept_it_is_compiled_each_time(
    fresh_compiler, monkeypatch, tmp_path: Path
):
    (tmp_path / "hyla").write_text("in the way")
    assert compiler.load_library(SEVEN, {"NUMBER": 7}).number() == 7


def test_without_a_compiler_the_equations_are_taken(fresh_compiler, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    q = torch.randn(1, 3, 2, 4)
    with pytest.raises(ValueError, match=r"it needs Linux and a C\+\+ compiler"):
        attention(q, q, q, backend="fused")
    assert attention(q, q, q).shape == q.shape


def test_a_compiler_that_fails_is_quoted(fresh_compiler, monkeypatch, tmp_path: Path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no such vectors >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert "no such vectors" in (compiler.why_unavailable() or "")

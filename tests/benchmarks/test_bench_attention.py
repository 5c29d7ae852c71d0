"""`hyla bench attention` on the host build of the kernels: what it checks, not how fast it is."""

import pytest
import torch

import every_kernel
from hyla.benchmarks import attention
from hyla.benchmarks.attention import CASES, SOFTMAX_CODES, Case
from kernel_host import needs_host_build


@pytest.fixture
def _untimed(on_the_cpu, monkeypatch):
    on_the_cpu(attention)
    monkeypatch.setattr(attention, "peak_mebibytes", lambda *_: 1.0)
    monkeypatch.setattr(attention, "_softmax_times", lambda case: [1.0, 2.0])


def test_every_case_has_a_name_of_its_own():
    assert len(set(map(str, CASES))) == len(CASES)


def test_softmax_codes_are_timed_at_every_shape_with_dropout():
    shapes = {}
    for case in CASES:
        if case.dropout:
            shapes.setdefault((case.dtype, case.T), []).append(case.attention)
    assert len(shapes) == 4
    assert all(names == ["hyla", *SOFTMAX_CODES] for names in shapes.values())


@needs_host_build
@pytest.mark.usefixtures("_untimed")
@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        (Case(2, 24, 8, 64, attention="hyla.rms4"), "large_head"),
        (Case(2, 24, 8, 64, key_heads=2), "large_head"),
        (Case(2, 24, 8, 64, attention=SOFTMAX_CODES[2], padding=True), "large_head_softmax"),
        (Case(2, 24, 8, 64, attention=SOFTMAX_CODES[0], padding=True), "large_head_plain_softmax"),
        (Case(2, 24, 8, 64, "float32", dropout=True), "large_head_plain_dropout"),
        (Case(2, 24, 8, 64, attention=SOFTMAX_CODES[1], dropout=True), "large_head_plain_dropout"),
    ],
    ids=str,
)
def test_rows_of_both_passes(case, kernel):
    rows = list(attention._rows(case))
    assert [row["pass"] for row in rows] == ["forward", "fwd+bwd"]
    assert [row["over_softmax"] for row in rows] == [2, 3]
    assert {row["kernel"] for row in rows} == {kernel}
    assert all(row["reference_ms"] for row in rows)


@needs_host_build
@pytest.mark.usefixtures("_untimed")
@pytest.mark.parametrize("key_heads", [0, 2])
def test_decoding_from_pages_beside_a_contiguous_cache(key_heads):
    case = Case(2, 64, 8, 64, decoding=True, page=16, key_heads=key_heads)
    (row,) = attention._rows(case)
    assert (row["pass"], row["over_softmax"], row["over_contiguous"]) == ("decode", 1, 1)


@needs_host_build
@pytest.mark.usefixtures("_untimed")
def test_a_wrong_result_is_not_timed_and_the_rest_is(monkeypatch):
    cases = [Case(2, 64, 8, 64, decoding=True, page=page) for page in (16, 0)]
    monkeypatch.setattr(attention, "CASES", cases)
    monkeypatch.setattr(attention, "paged_attention", lambda q, *_, **__: 2 * q)
    wrong, right = attention.measure(torch.device("cuda"), 1.0)
    assert wrong["error"].startswith("RuntimeError: the output is off by")
    assert "hyla_ms" not in wrong
    assert right["hyla_ms"] > 0


def test_what_is_not_there_is_not_chosen():
    with pytest.raises(SystemExit, match=r"nothing is called 7x7; there are\nhyla 8x1024 8x64 bf"):
        next(attention.measure(torch.device("cuda"), 1.0, only=["7x7"]))


@needs_host_build
@pytest.mark.usefixtures("_untimed")
@pytest.mark.parametrize("case", [case for case in every_kernel.cases() if case.decoding], ids=str)
def test_what_a_sanitizer_looks_at_decodes(case):
    every_kernel.run(case)


@needs_host_build
@pytest.mark.usefixtures("_untimed")
@pytest.mark.parametrize("case", [case for case in every_kernel.MORE if case.D == 2], ids=str)
def test_what_a_sanitizer_looks_at_runs_backward(case):
    every_kernel.run(case)


@pytest.mark.parametrize("wrong", [float("nan"), 1.0], ids=["nothing", "another"])
def test_a_kernel_that_is_wrong_now_and_then_is_refused(monkeypatch, wrong):
    offs = iter([wrong, 1e-2, 1e-2, wrong, 1e-2])
    monkeypatch.setattr(attention, "_errors", lambda *_: 4 * [(next(offs), 1e-2)])
    with pytest.raises(RuntimeError, match=r"hyla: output is off by .*, einsums by 1\.0e-02, 1"):
        attention.check(list, {"attention": "hyla"})


def test_a_draw_that_lies_at_a_kink_is_not_held_against_a_kernel(monkeypatch):
    offs = iter([5e-2, 1e-2, 1e-2, 1e-2, 1e-2])
    monkeypatch.setattr(attention, "_errors", lambda *_: 4 * [(next(offs), 1e-2)])
    attention.check(list, {"attention": "hyla"})

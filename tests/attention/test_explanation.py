"""`explain` and `hyla doctor attention`: the path, the reason, and what would be faster."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from attention_inputs import operands
from hyla.attention import PRESETS, attention, explain
from hyla.attention.explanation import PATHS
from hyla.attention.kernels import choice, large_head, small_head
from hyla.attention.kernels.choice import KERNELS
from hyla.attention.kernels.cpu import compiler
from hyla.cli import main

WIDE: dict[str, Any] = {"size": 32, "value_size": 32}
DEVICE = "there is a fused kernel"


def test_every_path_has_words():
    assert set(KERNELS) < set(PATHS)


def test_on_a_cpu_the_reference_and_why():
    q, k, v, _ = operands("hyla")
    found = explain(q, k, v)
    assert found.path == "reference"
    assert found.reason.endswith("q is on cpu")
    assert DEVICE in found.faster[-1]
    assert str(found).splitlines()[0].startswith("path: reference (the equations")


@pytest.mark.skipif(compiler.why_unavailable() is not None, reason="needs a C++ compiler")
def test_on_a_cpu_with_a_compiler_a_kernel_and_how_to_get_it():
    q, k, v, _ = operands("hyla")
    on_this, elsewhere = explain(q, k, v).faster
    assert on_this == "backend='fused'"
    assert DEVICE in elsewhere
    assert explain(q, k, v, backend="fused").path == "small_head_cpu"


def test_what_no_device_would_change_is_said():
    q, k, v, options = operands("hyla_deep")
    found = explain(q, k, v, **options)
    assert "would not help: the deep value network has no kernel" in found.reason
    assert found.faster == ()


def test_a_kernel_is_promised_only_where_a_large_gpu_would_take_it():
    q, k, v, options = operands("hyla", heads=64, size=128, value_size=128)
    reason = "H = 64 heads of D = 128 do not fit on a multiprocessor"
    found = explain(q, k, v, **options)
    assert f"a CUDA device would not help: {reason}" in found.reason
    assert found.faster == ()
    with pytest.raises(ValueError, match=reason):
        attention(q, k, v, backend="fused", **options)


def test_a_kernel_that_nobody_timed_is_promised_to_those_who_ask_for_it(monkeypatch):
    monkeypatch.setattr("hyla.attention.kernels.choice._table", list)
    q, k, v, options = operands("hyla_plus_softmax_last", heads=8, size=64, value_size=64)
    found = explain(q, k, v, **options)
    assert "; on one, the large_head_plain_softmax kernel was not measured on" in found.reason
    assert found.reason.endswith("yet (backend='fused' takes it)")
    with pytest.raises(ValueError, match="CUDA device"):
        attention(q, k, v, backend="fused", **options)


def test_a_kernel_that_is_slower_is_not_promised(monkeypatch):
    q, k, v, options = operands("hyla", **WIDE)
    assert DEVICE in explain(q, k, v, **options).faster[-1]
    slow = {"kernel": "large_head_plain", "dtype": "float32", "T": 5, "H": 3, "D": 32}
    table = [slow | {"fused_ms": 2.0, "reference_ms": 1.0}]
    monkeypatch.setattr("hyla.attention.kernels.choice._table", lambda: table)
    choice._is_faster_nearby.cache_clear()
    found = explain(q, k, v, **options)
    choice._is_faster_nearby.cache_clear()
    assert "would not help: the large_head_plain kernel was measured to be slower" in found.reason
    assert found.faster == ()


def test_one_query_that_only_decoding_takes_is_promised_its_kernel():
    sizes = {"size": 16, "value_size": 16, "dtype": torch.float16}
    q, k, v, _ = operands("hyla", queries=1, keys=9, **sizes)
    assert DEVICE in explain(q, k, v).faster[-1]
    q, k, v, _ = operands("hyla", **sizes)
    assert explain(q, k, v).faster == ()


@pytest.mark.parametrize(("name", "path"), [("softmax", "scaled_dot"), ("linear", "linear_time")])
def test_a_backend_that_is_faster_here_is_named(name, path):
    q, k, v, options = operands(name, queries=130, keys=130, **WIDE)
    found = explain(q, k, v, causal=True, **options)
    assert (found.path, found.faster) == ("reference", ("backend='fused'",))
    assert explain(q, k, v, causal=True, backend="fused", **options).path.startswith(path)


def test_a_single_chunk_of_linear_attention_is_not_called_faster():
    q, k, v, options = operands("linear", **WIDE)
    assert explain(q, k, v, **options).faster == ()


def test_fused_that_would_raise_is_explained_instead():
    q, k, v, options = operands("softmax", **WIDE)
    mask = torch.ones(5, 5).tril().bool()
    found = explain(q, k, v, mask=mask, backend="fused", **options)
    with pytest.raises(ValueError, match="of masks only key padding") as raised:
        attention(q, k, v, mask=mask, backend="fused", **options)
    assert found.path is None
    assert str(raised.value).startswith(found.reason)
    assert found.faster == ("no mask",)
    assert str(found).startswith("path: none, it raises")


def test_chunks_are_mentioned(monkeypatch):
    monkeypatch.setattr("hyla.attention.paths.chunking.MAX_PAIRWISE_ELEMENTS", 100)
    q, k, v, _ = operands("hyla")
    assert "queries at a time" in explain(q, k, v).reason


def test_wrong_arguments_raise_as_they_would_in_attention():
    q, k, v, _ = operands("hyla")
    with pytest.raises(ValueError, match="mask must be boolean"):
        explain(q, k, v, mask=torch.ones(5, 5))
    with pytest.raises(ValueError, match="must be True, False or"):
        explain(q, k, v, return_code=[1.5])  # pyright: ignore[reportArgumentType]


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    """Let calls be asked as on a GPU whose small-head kernel takes what its shapes allow."""
    monkeypatch.setattr("hyla.attention.explanation.wants_kernel", lambda *_: True)
    monkeypatch.setattr(small_head, "DEVICES", ("cpu", "cuda"))


@pytest.mark.parametrize(
    ("arguments", "faster"),
    [
        pytest.param(
            {"mask": torch.ones(5, 5).tril().bool()},
            ["causality and key padding", "no mask"],
            id="mask",
        ),
        pytest.param(
            {"code_multiplier": torch.ones(3, 5, 5)}, ["no code_multiplier"], id="dropout"
        ),
        pytest.param(
            {"attention": "hyla.expected2", "bias": torch.zeros(5, 5)},
            ["bias_masks=False", "no bias"],
            id="bias",
        ),
        pytest.param(
            {"attention": replace(PRESETS["hyla"], phi=torch.relu)}, ["φ by its name"], id="phi"
        ),
        pytest.param({"dtype": torch.float64}, ["bfloat16"], id="float64"),
    ],
)
def test_changes_that_lead_to_a_kernel_are_named(as_if_on_a_gpu, arguments, faster):
    dtype = arguments.pop("dtype", torch.float32)
    q, k, v = torch.randn(3, 2, 5, 3, 4, dtype=dtype)
    assert explain(q.float(), k.float(), v.float()).path == "small_head"
    found = explain(q, k, v, **arguments)
    assert found.path == "reference"
    assert len(found.faster) == len(faster)
    assert all(words in said for words, said in zip(faster, found.faster, strict=True))


def test_of_two_paths_the_slower_counts(as_if_on_a_gpu, monkeypatch):
    monkeypatch.setattr(large_head, "DEVICES", ("cpu", "cuda"))
    q, k, v, options = operands("hyla_residual_minus_rmshead", **WIDE)
    found = explain(q, k, v, **options)
    assert found.path == "linear_time + large_head_plain"
    assert [words for words in found.faster if "bfloat16" in words]
    found = explain(q.bfloat16(), k.bfloat16(), v.bfloat16(), **options)
    assert (found.path, found.faster) == ("linear_time + large_head", ())


def test_the_code_of_all_pairs_is_not_free(as_if_on_a_gpu):
    q, k, v = torch.randn(3, 2, 5, 3, 4)
    assert explain(q, k, v, return_code=[(0, 1)]).faster == ()
    assert "return_code=" in explain(q, k, v, return_code=True).faster[0]


# --- hyla doctor attention ----------------------------------------------------------------------


def doctor(capsys, *options: str) -> tuple[int, str]:
    code = main(["doctor", "attention", *options])
    return code, capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is so without a GPU")
def test_the_doctor_prints_path_reason_and_advice(capsys):
    code, shown = doctor(capsys, "--attention", "softmax", "--tokens", "64")
    assert code == 0
    path, why, faster = shown.splitlines()
    assert path.startswith("path: reference")
    assert why.startswith("why: backend 'auto'")
    assert faster == "faster: backend='fused'"


def test_the_doctor_as_json_of_all_options(capsys):
    options = "--attention hyla_deep --heads 4 --size 8 --tokens 3 --keys 9 --batch 2 --json"
    flags = "--dtype bfloat16 --causal --padding --bias --no-gradients --backend reference"
    code, shown = doctor(capsys, *options.split(), *flags.split())
    assert code == 0
    assert json.loads(shown)["path"] == "reference"


def test_what_fused_refuses_is_a_failure(capsys):
    code, shown = doctor(capsys, "--attention", "hyla_deep", "--backend", "fused")
    assert code == 1
    assert "the deep value network has no kernel" in shown


def test_wrong_sizes_are_wrong_usage(capsys):
    assert doctor(capsys, "--heads", "0")[0] == 2

"""Which backend computes: 'fused' runs or says why not; what the kernel is handed."""

import warnings

import pytest
import torch

from attention_inputs import operands
from hyla.attention import AttentionSpec, attention
from hyla.attention.dispatch import say_once

SOFTMAX_TWICE = AttentionSpec(normalisation=("softmax", "softmax"), value="linear")
OWN_PHI = AttentionSpec(normalisation="rms_head", value="hidden", phi=torch.sin)


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        pytest.param("hyla", {}, "one CUDA device, got cpu", id="on-cpu"),
        pytest.param("hyla_deep", {}, "deep value network has no kernel", id="deep"),
        pytest.param(SOFTMAX_TWICE, {}, "by name and one at a time", id="composition"),
        pytest.param(OWN_PHI, {}, "by name and one at a time", id="own-phi"),
        pytest.param(
            "softmax", {"code_multiplier": torch.ones(5, 5)}, r"attention dropout", id="dropout"
        ),
        pytest.param(
            "hyla", {"code_multiplier": torch.ones(3, 5, 5)}, "differs between heads", id="per-head"
        ),
        pytest.param(
            "hyla",
            {"mask": torch.ones(5, 5).bool()},
            r"only key padding .* not \(5, 5\)",
            id="mask",
        ),
    ],
)
def test_fused_runs_or_says_why_not(name, arguments, reason):
    q, k, v, options = operands(name)
    with pytest.raises(ValueError, match=rf"^backend 'fused' cannot compute this: .*{reason}"):
        attention(q, k, v, backend="fused", **options, **arguments)


@pytest.fixture
def handed(monkeypatch):
    """Stand in for the kernel: computes by the reference, and keeps what it was handed."""
    calls = []

    def kernel(name, q, k, v, *, bias, padding, multiplier, packing, row_factor, formula):
        calls.append((bias, padding, formula.phi))
        mask = None if padding is None else padding[:, None, None, :]
        spec = AttentionSpec(
            normalisation=formula.normalisation, value=formula.value, phi=formula.phi
        )
        options = {"causal": formula.causal, "scale": formula.scale, "eps": formula.eps}
        options["backend"] = "reference"
        return attention(q, k, v, attention=spec, bias=bias, mask=mask, **options)

    monkeypatch.setattr("hyla.attention.kernels.small_head.why_unsupported", lambda *_, **__: None)
    monkeypatch.setattr("hyla.attention.kernels.ops.fused_attention", kernel)
    return calls


@pytest.mark.parametrize("mask_shape", [None, (6,), (1,), (1, 6), (2, 1, 1, 6), (2, 1, 1, 1)])
@pytest.mark.parametrize("bias_shape", [None, (), (6,), (5, 1), (3, 5, 6), (2, 1, 5, 6)])
def test_kernel_is_handed_whole_axes(handed, bias_shape, mask_shape):
    q, k, v, options = operands("linear_rmshead", keys=6)
    bias = None if bias_shape is None else torch.randn(bias_shape)
    mask = None if mask_shape is None else torch.rand(mask_shape) > 0.3
    options |= {"bias": bias, "mask": mask, "causal": True, "return_code": True}
    out, code = attention(q, k, v, backend="fused", **options)
    want, want_code = attention(q, k, v, backend="reference", **options)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(code, want_code)
    ((full_bias, padding, phi),) = handed
    assert bias is None or full_bias.shape[1:] == (3, 5, 6)
    assert mask is None or padding.shape == (2, 6)
    assert phi == "identity"


def test_kernel_output_alone_and_code_of_half_precision(handed):
    q, k, v, options = operands("hyla", dtype=torch.float16, magnitude=1e3)
    out, code = attention(q, k, v, backend="fused", return_code=True, **options)
    assert torch.isfinite(code).all()
    assert code.dtype == torch.float16
    assert torch.equal(attention(q, k, v, backend="fused", **options), out)
    assert [phi for _, _, phi in handed] == ["relu", "relu"]


def test_the_reason_for_the_reference_path_is_said_once():
    with pytest.warns(UserWarning, match="reference path, not a fused kernel: as a test"):
        say_once("as a test")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        say_once("as a test")

"""Which backend computes: 'fused' runs or says why not; what the kernel is handed."""

import warnings

import pytest
import torch

from attention_inputs import operands
from hyla.attention import AttentionSpec, attention
from hyla.attention.dispatch import say_once

SOFTMAX_TWICE = AttentionSpec(normalisation=("softmax", "softmax"), value="linear")
WIDE = {"size": 32, "value_size": 32}
OWN_PHI = AttentionSpec(normalisation="rms_head", value="hidden", phi=torch.sin)


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        pytest.param("hyla", WIDE, "one CUDA device, got cpu", id="on-cpu"),
        pytest.param("hyla_deep", {}, "deep value network has no kernel", id="deep"),
        pytest.param(SOFTMAX_TWICE, {}, r"got 'softmax\+softmax'", id="composition"),
        pytest.param(OWN_PHI, {}, "normalisations and φ by name", id="own-phi"),
        pytest.param(
            "softmax",
            {"bias": torch.zeros(3, 5, 5), **WIDE},
            "one CUDA device, got cpu",
            id="biased-softmax",
        ),
        pytest.param(
            "softmax",
            {"code_multiplier": torch.ones(5, 5), **WIDE},
            "one CUDA device, got cpu",
            id="softmax-with-dropout",
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
    shape = {key: arguments[key] for key in arguments.keys() & WIDE.keys()}
    arguments = {key: arguments[key] for key in arguments.keys() - WIDE.keys()}
    q, k, v, options = operands(name, **shape)
    with pytest.raises(ValueError, match=rf"^backend 'fused' cannot compute this: .*{reason}"):
        attention(q, k, v, backend="fused", **options, **arguments)


@pytest.fixture
def handed(monkeypatch):
    """Stand in for the kernel: computes by the reference, and keeps what it was handed."""
    calls = []

    def kernel(name, call):
        bias, padding, row_factor, formula = call.bias, call.padding, call.row_factor, call.formula
        calls.append((bias, padding, formula.phi))
        mask = None if padding is None else padding[:, None, None, :]
        assert (row_factor is not None) == (formula.output == "rows")
        spec = AttentionSpec(
            normalisation=formula.normalisation,
            value=formula.value,
            phi=formula.phi,
            output="plain" if formula.output == "rows" else formula.output,
            gain=formula.gain,
        )
        options = {"causal": formula.causal, "scale": formula.scale, "eps": formula.eps}
        options["backend"] = "reference"
        out = attention(call.q, call.k, call.v, attention=spec, bias=bias, mask=mask, **options)
        return out if row_factor is None else out * row_factor[..., None, None]

    for name in ("small_head", "large_head"):
        module = f"hyla.attention.kernels.{name}"
        monkeypatch.setattr(f"{module}.why_unsupported", lambda *_, **__: None)
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


@pytest.mark.parametrize("mask_shape", [None, (6,), (2, 1, 1, 6), (2, 1, 1, 1)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["hyla.rms2", "hyla.plain4", "linear_rmshead.expected3"])
def test_kernel_is_handed_what_becomes_of_the_output(handed, name, causal, mask_shape):
    q, k, v, options = operands(name, keys=6)
    mask = None if mask_shape is None else torch.rand(mask_shape) > 0.3
    options |= {"mask": mask, "causal": causal}
    out = attention(q, k, v, backend="fused", **options)
    torch.testing.assert_close(out, attention(q, k, v, backend="reference", **options))
    assert len(handed) == 1


@pytest.mark.parametrize("name", ["hyla_residual", "hyla_residual.rms4", "hyla_residual.expected"])
@pytest.mark.parametrize(("size", "members"), [(4, 1), (32, 2)])
def test_a_residual_network_of_wide_heads_is_the_sum_of_two_members(handed, name, size, members):
    q, k, v, options = operands(name, keys=6, size=size, value_size=size)
    out = attention(q, k, v, backend="fused", causal=True, **options)
    torch.testing.assert_close(out, attention(q, k, v, causal=True, **options))
    assert len(handed) == members


@pytest.mark.parametrize("phi", ["silu", torch.sin])
@pytest.mark.parametrize("output", ["plain", "rms", "expected"])
@pytest.mark.parametrize("value", ["activated", "pooled"])
def test_a_nonlinearity_beside_the_sum_over_keys_is_put_around_the_linear_kernel(
    handed, value, output, phi
):
    spec = AttentionSpec(normalisation="rms_head", value=value, phi=phi, output=output, gain=0.5)
    q, k, v, options = operands("linear_rmshead", keys=6)
    options |= {"attention": spec, "mask": torch.tensor([True] * 5 + [False])}
    out = attention(q, k, v, backend="fused", causal=True, **options)
    torch.testing.assert_close(out, attention(q, k, v, causal=True, **options))
    assert [phi for _, _, phi in handed] == ["identity"]


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


@pytest.mark.parametrize("attention_name", ["hyla.expected", "hyla_residual.expected2"])
def test_keys_that_a_bias_may_mask_are_counted_by_the_reference_alone(attention_name):
    q = torch.randn(1, 3, 2, 32)
    options = {"attention": attention_name, "bias": torch.zeros(2, 3, 3), "backend": "fused"}
    with pytest.raises(ValueError, match="may mask keys by -inf"):
        attention(q, q, q, **options)
    with pytest.raises(ValueError, match="CUDA"):
        attention(q, q, q, **options, bias_masks=False)

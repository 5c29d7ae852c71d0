"""Half precision neither overflows nor turns into NaN inside; float64 stays float64."""

from typing import Any

import pytest
import torch

from attention_inputs import FAMILY, operands
from hyla.attention import attention, packed_attention, resolve_spec

every_preset = pytest.mark.parametrize("name", FAMILY)
HALF = [torch.bfloat16, torch.float16]
# One rounding of the result to the dtype, and of sums of cancelling terms before it none.
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}


def cast(options: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {key: x.to(dtype) if torch.is_tensor(x) else x for key, x in options.items()}


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64], ids=str)
@every_preset
def test_dtype_is_kept(name, dtype):
    q, k, v, options = operands(name, dtype=dtype, requires_grad=True)
    out, code = attention(q, k, v, return_code=True, **options)
    out.sum().backward()
    assert {out.dtype, code.dtype, q.grad.dtype, v.grad.dtype} == {dtype}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@every_preset
def test_half_precision_is_float32_rounded_once(name, dtype):
    q, k, v, options = operands(name, dtype=dtype)
    out = attention(q, k, v, **options)
    want = attention(q.float(), k.float(), v.float(), **cast(options, torch.float32))
    torch.testing.assert_close(out.float(), want, rtol=ROUNDING[dtype], atol=1e-6)


@pytest.mark.parametrize("magnitude", [1e3, 1e-3])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@every_preset
def test_large_and_small_inputs_are_finite_in_half_precision(name, dtype, magnitude):
    q, k, v, options = operands(name, dtype=dtype, magnitude=magnitude, requires_grad=True)
    out, code = attention(q, k, v, causal=True, return_code=True, **options)
    spec = resolve_spec(name)
    if dtype == torch.float16 and magnitude > 1 and "none" in spec.normalisation_steps:
        # What is returned is itself beyond 65,504: it overflows to infinity, and not to NaN.
        assert code.isinf().any()
        assert not out.isnan().any()
        assert out.isinf().any() == (spec.output == "plain")
        return
    assert torch.isfinite(code).all()
    assert torch.isfinite(out).all()
    out.float().mean().backward()
    for x in (q, k, v):
        assert not x.grad.isnan().any()


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_rms_head_of_large_scores_has_unit_mean_square(dtype):
    q, k, v, _ = operands("hyla", dtype=dtype, magnitude=1e3)
    _, code = attention(q, k, v, return_code=True)
    mean_square = code.float().square().mean(dim=1)
    torch.testing.assert_close(mean_square, torch.ones_like(mean_square), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("scale", [1e-30, 1e18, 1e20, 1e23])
@pytest.mark.parametrize("name", ["hyla", "linear_rmshead", "hyla_deep", "hyla_plus_softmax_last"])
def test_rms_head_of_scores_whose_squares_overflow(name, scale):
    q, k, v, options = operands(name, requires_grad=True)
    out = attention(q, k, v, scale=scale, **options)
    want = attention(
        q.double(), k.double(), v.double(), scale=scale, **cast(options, torch.float64)
    )
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    of_value = torch.autograd.grad(out.square().sum(), v)
    wanted = torch.autograd.grad(want.square().sum(), v)
    torch.testing.assert_close(of_value, wanted, rtol=1e-4, atol=1e-5)


def test_rms_head_of_scores_of_0_has_a_gradient_for_any_usual_eps():
    _, k, v, _ = operands("hyla")
    q = torch.zeros_like(k, requires_grad=True)
    attention(q, k, v, eps=1e-14).sum().backward()
    assert q.grad.isfinite().all()


def test_rms_head_of_scores_beyond_all_bounds_is_no_number():
    q, k, v, options = operands("hyla")
    assert attention(q, k, v, scale=1e37, **options).isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_bias_and_multiplier_may_have_another_dtype(dtype):
    q, k, v, _ = operands("hyla")
    bias, multiplier = torch.randn(3, 5, 5, dtype=dtype), torch.rand(5, 5).to(dtype)
    out = attention(q, k, v, bias=bias, code_multiplier=multiplier)
    want = attention(q, k, v, bias=bias.float(), code_multiplier=multiplier.float())
    torch.testing.assert_close(out, want, rtol=0, atol=0)


def test_autocast_of_a_float32_bias_is_close_to_float32():
    q, k, v, _ = operands("hyla", dtype=torch.bfloat16)
    bias = torch.randn(3, 5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q, k, v, bias=bias)
    want = attention(q.float(), k.float(), v.float(), bias=bias)
    assert out.dtype == torch.bfloat16
    assert (out - want).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize("name", ["softmax", "linear", "hyla"])
def test_autocast_to_float16_does_not_overflow_inside(name):
    q, k, v, options = operands(name)
    with torch.autocast("cpu", dtype=torch.float16):
        out = attention(200 * q, 200 * k, v, **options, scale=0.1)
    assert out.dtype == torch.float16
    want = attention(200 * q, 200 * k, v, **options, scale=0.1)
    assert (out.float() - want).abs().max() < 0.02 * want.abs().max()


def test_autocast_brings_operands_of_several_dtypes_together():
    q, k, v, _ = operands("hyla")  # normed queries and keys are float32, projected values are not
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q, k, v.bfloat16())
        packed = packed_attention(q[0], k[0], v[0].bfloat16(), torch.tensor([0, 5]))
        with pytest.raises(ValueError, match=r"^q must be floating point"):
            attention(q.long(), k, v)
    assert torch.equal(out, attention(*(x.bfloat16() for x in (q, k, v))))
    assert torch.equal(packed, out[0])

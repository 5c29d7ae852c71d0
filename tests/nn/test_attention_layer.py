"""The attention layer: errors, cross-attention, edges, dropout, checkpoints, masks."""
# ruff: noqa: E501 (one line a case)

import subprocess
import sys

import pytest
import torch

from attention_inputs import FAMILY
from hyla.attention import AttentionSpec, attention, register_attention, resolve_spec, spec
from hyla.nn import MultiHeadAttention

every_preset = pytest.mark.parametrize("name", FAMILY)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        pytest.param({"num_heads": 5}, r"^embed_dim=12 does not divide into num_heads=5 heads; use a multiple such as 10", id="heads"),
        pytest.param({"num_heads": 5, "qk_dim": 12}, r"^qk_dim=12 does not divide", id="heads-and-qk_dim"),
        pytest.param({"num_heads": 5, "qk_dim": 10}, r"^embed_dim=12 does not divide", id="heads-not-v_dim"),
        pytest.param({"v_dim": 7}, r"^v_dim=7 does not divide into num_heads=3 heads; use a multiple such as 6", id="v_dim"),
        pytest.param({"qk_dim": 1}, r"^qk_dim=1 does not divide .* such as 3", id="qk_dim"),
        pytest.param({"embed_dim": 0}, r"^embed_dim must be at least 1, got 0", id="embed_dim"),
        pytest.param({"num_heads": -1}, r"^num_heads must be at least 1, got -1", id="negative-heads"),
        pytest.param({"dropout": 1.0}, r"^dropout must be in \[0, 1\), got 1.0", id="dropout"),
        pytest.param({"backend": "fusd"}, r"^backend 'fusd' is unknown \(did you mean 'fused'\?\)", id="backend"),
        pytest.param({"qk_dim": 9, "rotary": True}, r"^rotary positions need an even head size, got 3", id="rotary"),
        pytest.param({"attention": "hylas"}, r"^attention 'hylas' is unknown \(did you mean 'hyla'\?\)", id="attention"),
    ],
)  # fmt: skip
def test_construction_names_the_argument(arguments, match):
    arguments = {"embed_dim": 12, "num_heads": 3} | arguments
    with pytest.raises(ValueError, match=match):
        MultiHeadAttention(arguments.pop("embed_dim"), arguments.pop("num_heads"), **arguments)


@pytest.mark.parametrize(
    ("x", "arguments", "match"),
    [
        pytest.param((2, 5, 11), {}, r"^x must have shape \[batch, tokens, 12\], got \(2, 5, 11\)", id="x-size"),
        pytest.param((5, 12), {}, r"^x must have shape", id="x-rank"),
        pytest.param((2, 5, 12), {"context": torch.ones(2, 4, 10)}, r"^context must have shape", id="context-size"),
        pytest.param((2, 5, 12), {"context": torch.ones(3, 4, 12)}, r"^context holds 3 sequences and x 2", id="context-batch"),
        pytest.param((2, 5, 12), {"mask": torch.ones(2, 5).bool()}, r"^mask .* key padding", id="mask"),
        pytest.param((2, 5, 12), {"dropout_noise": torch.ones(5, 4)}, r"^dropout_noise must have shape \[queries, keys\] = \[5, 5\], got \(5, 4\)", id="noise"),
    ],
)  # fmt: skip
def test_call_names_the_argument(x, arguments, match):
    layer = MultiHeadAttention(12, 3, dropout=0.5)
    with pytest.raises(ValueError, match=match):
        layer(torch.randn(x), **arguments)


@every_preset
def test_layer_is_projections_around_attention(name):
    layer = MultiHeadAttention(6, 3, qk_dim=12, v_dim=9, attention=name)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        torch.nn.init.normal_(projection.bias)
    x, context = torch.randn(2, 5, 6), torch.randn(2, 7, 6)
    bias, mask = torch.randn(3, 5, 7), torch.rand(2, 1, 5, 7) > 0.2
    out, code = layer(x, context, bias=bias, mask=mask, return_code=True)
    inner, want_code = attention(
        layer.q_proj(x).reshape(2, 5, 3, 4),
        layer.k_proj(context).reshape(2, 7, 3, 4),
        layer.v_proj(context).reshape(2, 7, 3, 3),
        attention=name,
        bias=bias,
        mask=mask,
        value_weight=layer.value_weight,
        return_code=True,
    )
    torch.testing.assert_close(out, layer.out_proj(inner.reshape(2, 5, 9)))
    torch.testing.assert_close(code, want_code)
    torch.testing.assert_close(layer(x, context, bias=bias, mask=mask), out)


@pytest.mark.parametrize("shape", [(0, 5, 12), (2, 1, 12), (2, 0, 12)], ids=str)
def test_empty_batch_and_single_token(shape):
    layer = MultiHeadAttention(12, 3)
    out = layer(torch.randn(shape), causal=True)
    assert out.shape == shape
    out.sum().backward()
    assert layer.q_proj.weight.grad.isfinite().all()


@every_preset
def test_state_dict_does_not_depend_on_the_backend(name):
    auto = MultiHeadAttention(12, 3, attention=name, backend="auto")
    reference = MultiHeadAttention(12, 3, attention=name, backend="reference")
    reference.load_state_dict(auto.state_dict())
    names = {"q_proj", "k_proj", "v_proj", "out_proj"}
    want = {f"{part}.{leaf}" for part in names for leaf in ("weight", "bias")}
    want |= {"value_weight"} if "hyla_deep" in name else set()
    assert set(auto.state_dict()) == set(reference.state_dict()) == want
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(auto(x), reference(x))


def dropout_layer() -> MultiHeadAttention:
    return MultiHeadAttention(12, 3, attention="softmax", dropout=0.25)


def test_dropout_is_off_in_eval():
    layer, x = dropout_layer().eval(), torch.randn(2, 5, 12)
    without = MultiHeadAttention(12, 3, attention="softmax")
    without.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), without(x))
    assert not torch.equal(layer.train()(x), without(x))


def test_dropout_shares_one_decision_over_batch_and_heads():
    layer, x = dropout_layer(), torch.randn(4, 20, 12)
    _, code = layer(x, return_code=True)
    _, kept_code = layer.eval()(x, return_code=True)
    ratio = code / kept_code
    dropped = ratio[0, 0] == 0
    assert 0.15 < dropped.float().mean() < 0.35
    want = torch.where(dropped, 0.0, 1 / 0.75).expand_as(ratio)
    torch.testing.assert_close(ratio, want)


def test_dropout_keeps_the_expected_code():
    layer, x = dropout_layer(), torch.randn(1, 3, 12)
    _, want = layer.eval()(x, return_code=True)
    layer.train()
    mean = torch.stack([layer(x, return_code=True)[1] for _ in range(2000)]).mean(dim=0)
    torch.testing.assert_close(mean, want, rtol=0.06, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_dropout_scales_half_precision_as_it_does_float32(dtype):
    layer = MultiHeadAttention(12, 3, dropout=0.1).to(dtype)
    q = torch.randn(1, 5, 3, 4, dtype=dtype)
    multiplier = layer._dropout_multiplier(q, q, torch.ones(5, 5))
    torch.testing.assert_close(multiplier, torch.full((5, 5), 1 / 0.9))


def test_dropout_noise_decides():
    layer, x = dropout_layer(), torch.randn(2, 5, 12)
    noise = torch.rand(5, 5)
    first, code = layer(x, dropout_noise=noise, return_code=True)
    assert torch.equal(first, layer(x, dropout_noise=noise))
    assert torch.equal(code[1, 2] == 0, noise < 0.25)
    torch.testing.assert_close(
        layer(x, dropout_noise=torch.ones(5, 5)), layer(x, dropout_noise=torch.full((5, 5), 0.25))
    )


def test_rotary_layer_is_shift_invariant_and_not_permutation_invariant():
    layer = MultiHeadAttention(12, 3, rotary=True).double()
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    shifted = torch.cat([torch.randn_like(x[:, :4]), x], dim=1)
    mask = torch.ones(10, 10, dtype=torch.bool)
    mask[:, :4] = False
    torch.testing.assert_close(layer(shifted, mask=mask)[:, 4:], layer(x))
    assert (layer(x.flip(1)).flip(1) - layer(x)).abs().max() > 1e-3


def test_not_even_a_nan_leaves_the_padding_of_a_layer_whose_code_is_edited():
    layer, x, context = MultiHeadAttention(12, 3), torch.randn(2, 5, 12), torch.randn(2, 4, 12)
    mask = torch.tensor([True, True, False, False])
    want = layer(x, context, mask=mask)
    context[:, 2:] = torch.nan
    torch.testing.assert_close(layer(x, context, mask=mask, edit_code=lambda code: code), want)


@pytest.mark.integration
def test_shapes_without_values():
    code = """
import torch
from hyla.nn import MultiHeadAttention

with torch.device("meta"):
    layer, x = MultiHeadAttention(12, 3), torch.ones(2, 5, 12)
outs = [layer(x, causal=True), layer(x, causal=True, edit_code=torch.neg)]
outs.append(layer(x, causal=True, return_code=[(0, -1)])[0])
assert [out.shape for out in outs] == [(2, 5, 12)] * 3
assert {out.device.type for out in outs} == {"meta"}
"""
    # In a process of its own: where torch 2.13 has compiled our operator under autocast, its own
    # nn.Linear does not run on "meta" any more.
    subprocess.run([sys.executable, "-c", code], check=True)


def test_print_shows_attention_and_heads():
    layer = MultiHeadAttention(16, 4, attention="hyla.silu.rms4", rotary=True)
    assert "attention='hyla.silu.rms4', num_heads=4, rotary=True" in repr(layer)
    own = AttentionSpec(normalisation="rms_head", value="hidden", phi=torch.sin)
    assert "attention='rms_head hidden sin" in repr(MultiHeadAttention(16, 4, attention=own))


def test_weights_of_another_attention_are_loaded_with_a_warning(tmp_path):
    model = torch.nn.Sequential(MultiHeadAttention(8, 2, attention="softmax"))
    trained = torch.nn.Sequential(MultiHeadAttention(8, 2, attention="hyla"))
    with pytest.warns(UserWarning, match="0 attends by 'softmax'.*were trained by 'hyla'"):
        model.load_state_dict(trained.state_dict())
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    with pytest.warns(UserWarning, match="were trained by 'hyla'"):
        model.load_state_dict(torch.load(tmp_path / "weights.pt"))
    trained.load_state_dict(torch.load(tmp_path / "weights.pt"))
    model.load_state_dict(dict(trained.state_dict()))  # nothing is known of where it comes from


def test_names_of_one_meaning_are_loaded_without_a_warning(monkeypatch):
    trained = MultiHeadAttention(8, 2, attention="hyla.silu").state_dict()
    monkeypatch.setattr("hyla.attention.spec._PRESETS", presets := dict(spec._PRESETS))
    monkeypatch.setattr("hyla.attention.spec.PRESETS", presets)
    register_attention("mine", resolve_spec("hyla.silu"))
    layer = MultiHeadAttention(8, 2, attention="mine")
    assert "'hyla.silu'" in repr(layer)
    layer.load_state_dict(trained)
    trained._metadata[""]["attention"] = "mine"  # pyright: ignore - as they were kept once
    MultiHeadAttention(8, 2, attention="hyla.silu").load_state_dict(trained)
    linear = MultiHeadAttention(8, 2, attention="softmax.gelu").state_dict()
    MultiHeadAttention(8, 2, attention="softmax").load_state_dict(linear)


def test_the_warning_points_at_whoever_loads():
    model = torch.nn.Sequential(torch.nn.Sequential(MultiHeadAttention(8, 2)))
    other = torch.nn.Sequential(torch.nn.Sequential(MultiHeadAttention(8, 2, attention="softmax")))
    with pytest.warns(UserWarning, match="0.0 attends by") as warned:
        model.load_state_dict(other.state_dict())
    assert warned[0].filename == __file__


def test_a_gain_too_small_for_a_divisor_is_shown_as_it_is():
    tiny = AttentionSpec(normalisation="rms_head", value="hidden", gain=1e-310)
    layer = MultiHeadAttention(8, 2, attention=tiny)
    assert "attention='rms_head hidden relu plain 1e-310'" in repr(layer)

"""The family as data: what each preset computes, and the readings of the rows left open."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_inputs import operands
from hyla.attention import (
    NORMALISATIONS,
    PHIS,
    PRESETS,
    VALUE_NETWORKS,
    AttentionSpec,
    attention,
    resolve_spec,
)


def rms_head(scores: Tensor, eps: float = 1e-6) -> Tensor:
    return scores / (scores.square().mean(dim=1, keepdim=True) + eps).sqrt()


def raw_scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])


def pool(code: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bkhd->bqhd", code, v)


def hidden_layer(code: Tensor, v: Tensor, phi) -> Tensor:
    return torch.einsum("bhqk,bqkd->bqhd", code, phi(torch.einsum("bhqk,bkhd->bqkd", code, v)))


def both(code: Tensor, v: Tensor) -> Tensor:
    return pool(code, v) + hidden_layer(code, v, F.relu)


# Each row written out once more, by hand, from Table A1; the residual ones are ours.
ROWS = {
    "softmax": lambda s, v: pool(s.softmax(-1), v),
    "linear": lambda s, v: pool(s, v),
    "hyla": lambda s, v: hidden_layer(rms_head(s), v, F.relu),
    "linear_rmshead": lambda s, v: pool(rms_head(s), v),
    "linear_rmshead_nonlinear_value": lambda s, v: pool(rms_head(s), v.relu()),
    "linear_rmshead_nonlinear_pooled": lambda s, v: pool(rms_head(s), v).relu(),
    "hyla_minus_rmshead": lambda s, v: hidden_layer(s, v, F.relu),
    "hyla_minus_nonlinearity": lambda s, v: hidden_layer(rms_head(s), v, lambda x: x),
    "hyla_minus_nonlinearity_minus_rmshead": lambda s, v: hidden_layer(s, v, lambda x: x),
    "hyla_minus_rmshead_plus_softmax": lambda s, v: hidden_layer(s.softmax(-1), v, F.relu),
    "hyla_plus_softmax": lambda s, v: hidden_layer(rms_head(s.softmax(-1)), v, F.relu),
    "hyla_plus_softmax_last": lambda s, v: hidden_layer(rms_head(s).softmax(-1), v, F.relu),
    "hyla_residual": lambda s, v: both(rms_head(s), v),
    "hyla_residual_minus_rmshead": lambda s, v: both(s, v),
    "hyla_residual_minus_rmshead_plus_softmax": lambda s, v: both(s.softmax(-1), v),
}


def test_every_preset_has_a_row_here():
    # Eq. 10 is held to a loop over pairs in test_hypernetwork_identity.
    assert ROWS.keys() | {"hyla_deep"} == PRESETS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_preset_computes_its_row(name):
    q, k, v, options = operands(name, keys=6, value_size=3, dtype=torch.float64)
    torch.testing.assert_close(attention(q, k, v, **options), ROWS[name](raw_scores(q, k), v))


def test_hyla_plus_softmax_normalises_over_keys_first_and_heads_last():
    q, k, v, _ = operands("hyla", heads=4)
    _, first = attention(q, k, v, attention="hyla_plus_softmax", return_code=True)
    _, last = attention(q, k, v, attention="hyla_plus_softmax_last", return_code=True)
    mean_square = first.square().mean(dim=1)
    torch.testing.assert_close(mean_square, torch.ones_like(mean_square), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(last.sum(dim=-1), torch.ones_like(last[..., 0]))
    assert (first - last).abs().max() > 0.1


def test_scale_and_eps_are_used():
    q, k, v, _ = operands("linear")
    out, code = attention(q, k, v, attention="linear", scale=0.5, return_code=True)
    torch.testing.assert_close(code, 0.5 * math.sqrt(q.shape[-1]) * raw_scores(q, k))
    torch.testing.assert_close(out, pool(code, v))
    _, code = attention(q, k, v, attention="hyla", eps=3.0, return_code=True)
    torch.testing.assert_close(code, rms_head(raw_scores(q, k), 3.0))


@pytest.mark.parametrize("phi", sorted(PHIS))
def test_phi_by_name(phi):
    wanted = {
        "relu": lambda x: x.clamp_min(0),
        "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": lambda x: x * torch.sigmoid(x),
        "tanh": lambda x: 1 - 2 / (1 + torch.exp(2 * x)),
        "identity": lambda x: x,
    }[phi]
    q, k, v, _ = operands("hyla", dtype=torch.float64)
    spec = AttentionSpec(normalisation="rms_head", value="hidden", phi=phi)
    want = hidden_layer(rms_head(raw_scores(q, k)), v, wanted)
    torch.testing.assert_close(attention(q, k, v, attention=spec), want)


@pytest.mark.parametrize("value", ["activated", "pooled", "hidden", "deep", "residual"])
def test_phi_can_be_any_callable(value):
    def named(phi):
        return AttentionSpec(normalisation="rms_head", value=value, phi=phi)

    q, k, v, options = operands(named("silu"))
    want = attention(q, k, v, **options)
    options["attention"] = named(lambda x: x * torch.sigmoid(x))
    torch.testing.assert_close(attention(q, k, v, **options), want)


def test_normalisation_can_be_any_callable_and_a_composition_with_named_ones():
    def double(scores, mask, eps):
        return 2 * scores

    q, k, v, _ = operands("linear")
    spec = AttentionSpec(normalisation=(double, "softmax"), value="linear")
    want = pool((2 * raw_scores(q, k)).softmax(-1), v)
    torch.testing.assert_close(attention(q, k, v, attention=spec), want)


def test_a_callable_that_forgets_the_mask_still_gives_masked_pairs_code_zero():
    def sigmoid(scores, mask, eps):
        return torch.sigmoid(scores)

    q, k, v, _ = operands("linear")
    spec = AttentionSpec(normalisation=sigmoid, value="linear")
    _, code = attention(q, k, v, attention=spec, causal=True, return_code=True)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert (code[..., future] == 0).all()
    torch.testing.assert_close(code[..., ~future], torch.sigmoid(raw_scores(q, k))[..., ~future])


def test_code_multiplier_is_applied_after_the_normalisation():
    q, k, v, _ = operands("softmax")
    multiplier = torch.rand(5, 5)
    out, code = attention(
        q, k, v, attention="softmax", code_multiplier=multiplier, return_code=True
    )
    torch.testing.assert_close(code, raw_scores(q, k).softmax(-1) * multiplier)
    torch.testing.assert_close(out, pool(code, v))


def test_a_spec_is_a_value_that_cannot_change():
    assert resolve_spec("hyla") == AttentionSpec(normalisation="rms_head", value="hidden")
    assert len({resolve_spec("hyla"), resolve_spec("hyla"), resolve_spec("linear")}) == 2
    with pytest.raises(AttributeError):
        PRESETS["hyla"].value = "linear"  # pyright: ignore[reportAttributeAccessIssue]


def test_every_named_part_is_used_by_some_preset_or_is_a_choice_of_phi():
    assert {spec.value for spec in PRESETS.values()} == VALUE_NETWORKS.keys()
    steps = {step for spec in PRESETS.values() for step in spec.normalisation_steps}
    assert steps == NORMALISATIONS.keys()

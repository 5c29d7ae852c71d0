"""One attention layer and the relative bias against the authors' numbers."""

import pytest
import torch

from golden_files import load, ours, relative_error
from hyla.nn import MultiHeadAttention, T5RelativeBias, state_dict_from_flax

NAMES = (
    "softmax",
    "linear",
    "linear_rmshead",
    "hyla",
    "hyla_minus_nonlinearity",
    "hyla_minus_rmshead",
    "hyla_minus_nonlinearity_minus_rmshead",
    "hyla_minus_rmshead_plus_softmax",
)


@pytest.mark.parametrize("pattern", ["full", "causal"])
@pytest.mark.parametrize("name", NAMES)
def test_layer_matches_the_authors_output_code_and_gradients(name, pattern):
    golden = load(f"attention_{name}_{pattern}")
    layer = MultiHeadAttention(24, 4, qk_dim=16, v_dim=16, attention=name)
    layer.load_state_dict(ours("param", golden))
    x = torch.tensor(golden["in.x"], requires_grad=True)
    bias = torch.tensor(golden["in.bias"], requires_grad=True)

    y, code = layer(x, bias=bias, causal=pattern == "causal", return_code=True)
    (y * torch.tensor(golden["in.cotangent"])).sum().backward()

    assert relative_error(y, golden["out.y"]) < 1e-5
    assert relative_error(code, golden["out.attn"]) < 1e-5
    assert relative_error(x.grad, golden["grad.x"]) < 1e-4
    assert relative_error(bias.grad, golden["grad.bias"]) < 1e-4
    gradients = ours("grad", golden, without=("x", "bias"))
    assert gradients.keys() == dict(layer.named_parameters()).keys()
    if "softmax" in name:
        # The softmax over keys does not see what is added to all keys: 0 but for rounding.
        del gradients["k_proj.bias"]
        assert layer.k_proj.bias.grad.abs().max() < 1e-6 * x.grad.abs().max()
    for parameter, want in gradients.items():
        got = layer.get_parameter(parameter).grad
        assert relative_error(got, want) < 1e-4, parameter


@pytest.mark.parametrize(
    ("file", "max_distance"), [("relative_bias", 9), ("relative_bias_log", 32)]
)
def test_relative_bias_matches_the_authors_table(file, max_distance):
    golden = load(file)
    heads, buckets = golden["table"].shape
    tokens = golden["bias"].shape[-1]
    layer = T5RelativeBias(heads, num_buckets=buckets, max_distance=max_distance)
    layer.load_state_dict({"table": torch.tensor(golden["table"])})
    torch.testing.assert_close(layer(tokens, tokens), torch.tensor(golden["bias"]), rtol=0, atol=0)


def test_converter_rejects_a_name_that_is_not_the_authors():
    golden = load("attention_hyla_full")
    with pytest.raises(ValueError, match=r"'quarry\.kernel' is not a parameter name"):
        state_dict_from_flax({"quarry.kernel": golden["param.query.kernel"]})

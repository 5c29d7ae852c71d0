"""Hook points: what passes through them is what the layer computes with."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from hyla.latents import UnsupportedModelError, record_codes
from hyla.latents.hook_points import HOOK_POINTS, add_hook_points
from hyla.nn import MultiHeadAttention, Transformer, TransformerConfig

SIZES = {"sequence_length": 6, "embed_dim": 8, "qk_dim": 8, "v_dim": 4, "mlp_dim": 8}
SIZES |= {"num_heads": 2, "num_layers": 2, "input_dim": 3, "output_dim": 5}


def a_model(**changes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**SIZES, **changes)).eval()


@pytest.mark.parametrize("attention", ["hyla", "hyla.expected2", "softmax", "hyla_deep"])
def test_a_model_with_hook_points_computes_the_same(attention):
    model, x = a_model(attention=attention), torch.randn(2, 6, 3)
    want, names = model(x), set(model.state_dict())
    torch.testing.assert_close(add_hook_points(model)(x), want)
    assert set(model.state_dict()) == names


def test_what_passes_through_them():
    model, x = add_hook_points(a_model(causal=True).for_long_sequences()), torch.randn(2, 6, 3)
    layer: Any = model.get_submodule("blocks.1.attention")
    seen, code = {}, model(x, details=True).codes[1]
    for name in HOOK_POINTS:
        point = dict(model.named_modules())[f"blocks.1.attention.{name}"]
        point.register_forward_hook(lambda _, args, out, name=name: seen.update({name: out}))
    layer.register_forward_hook(
        lambda _, args, kwargs, out: seen.update(x=args[0], out=out), with_kwargs=True
    )
    model(x)
    torch.testing.assert_close(seen["hook_code"], code)
    torch.testing.assert_close(seen["hook_value"].flatten(-2), layer.v_proj(seen["x"]))
    torch.testing.assert_close(layer.out_proj(seen["hook_output"].flatten(-2)), seen["out"])
    assert seen["hook_output"].shape == (2, 6, 2, 2)


@pytest.mark.parametrize("name", HOOK_POINTS)
def test_what_a_hook_returns_is_used(name):
    """With no code, no value or no output, attention adds its projection's bias alone."""
    layer, x = add_hook_points(MultiHeadAttention(8, 2)), torch.randn(2, 5, 8)
    getattr(layer, name).register_forward_hook(lambda *seen: torch.zeros_like(seen[-1]))
    if name == "hook_value":
        nn.init.zeros_(layer.v_proj.bias)
    torch.testing.assert_close(layer(x), layer.out_proj.bias.expand(2, 5, 8))


def test_a_copy_has_hooks_of_its_own():
    layer = add_hook_points(MultiHeadAttention(8, 2))
    twin = copy.deepcopy(layer)
    seen = []
    for which, module in (("layer", layer), ("twin", twin)):
        for name in HOOK_POINTS:
            getattr(module, name).register_forward_hook(lambda *_, which=which: seen.append(which))
    twin(torch.randn(2, 5, 8))
    assert seen == ["twin"] * len(HOOK_POINTS)


def test_codes_are_recorded_beside_them_and_they_are_added_once():
    plain, x = a_model(), torch.randn(2, 6, 3)
    want = record_codes(plain, x, pairs="all").codes
    hooked = add_hook_points(add_hook_points(plain))
    assert record_codes(hooked, x, pairs="all").codes == pytest.approx(want, abs=1e-5)
    points = [name for name, _ in hooked.named_modules() if ".hook_" in name]
    assert len(points) == 2 * len(HOOK_POINTS)


def test_a_model_without_layers_of_hyla_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"no hyla\.nn\.MultiHeadAttention layer"):
        add_hook_points(nn.Linear(2, 2))

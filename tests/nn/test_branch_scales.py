"""The scales of the branches: by hand, of the paper's models; measuring changes nothing."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyla.nn import BranchScales, Transformer, TransformerConfig, branch_scales
from hyla.training import config_from_tree, load_preset, merge


def tiny(**changes) -> Transformer:
    sizes: dict = {
        "input_dim": 5,
        "output_dim": 3,
        "sequence_length": 6,
        "embed_dim": 8,
        "qk_dim": 4,
        "v_dim": 4,
        "mlp_dim": 16,
        "num_heads": 2,
        "num_layers": 2,
    }
    return Transformer(TransformerConfig(**(sizes | changes)))


def std(x: Tensor) -> float:
    """By the definition, over all numbers."""
    x = x.detach().double()
    return float((x - x.mean()).square().mean().sqrt())


def test_they_are_those_of_the_equations():
    model, x = tiny(), torch.randn(4, 6, 5)
    mask = torch.ones(6, 6).tril().bool()
    stream, want = model.embedding(x), []
    blocks: list[Any] = list(model.blocks)
    for block in blocks:
        bias = block.relative_bias(6, 6)
        attended = block.attention(block.attention_norm(stream), bias=bias, mask=mask)
        between = stream + attended
        fed = block.feed_forward(block.feed_forward_norm(between))
        want.append([std(y) for y in (stream, attended, between, fed)])
        stream = between + fed
    got = branch_scales(model, x, mask=mask)
    assert [list(vars(block).values()) for block in got] == [
        pytest.approx(row, rel=1e-5) for row in want
    ]
    assert got[1].attention_ratio == pytest.approx(want[1][1] / want[1][0], rel=1e-5)
    assert got[1].feed_forward_ratio == pytest.approx(want[1][3] / want[1][2], rel=1e-5)


def test_a_case_for_the_eye():
    """Attention adds 3 and -3 where the stream is 1 and -1; the feed-forward network adds 0."""
    model = tiny(input_dim=2, embed_dim=2, qk_dim=2, v_dim=2, num_heads=1, num_layers=1)
    block: Any = model.blocks[0]
    assert isinstance(model.embedding, nn.Linear)
    with torch.no_grad():
        for parameter in (*block.attention.parameters(), *block.feed_forward.parameters()):
            parameter.zero_()
        model.embedding.weight.copy_(torch.eye(2))
        block.attention.out_proj.bias.copy_(torch.tensor([3.0, -3.0]))
    x = torch.tensor([1.0, -1.0]).expand(2, 6, 2)
    [scales] = branch_scales(model, x)
    assert scales == BranchScales(stream=1.0, attention=3.0, between=4.0, feed_forward=0.0)
    assert (scales.attention_ratio, scales.feed_forward_ratio) == (3.0, 0.0)


# Standard deviation of the first block's attention branch: softmax, linear, HYLA.
@pytest.mark.parametrize(
    ("task", "stream", "attention"),
    [
        ("sraven", 0.32, {"softmax": 0.43, "linear": 12.5, "hyla": 38.7}),
        ("fuzzy", 0.50, {"softmax": 0.91, "linear": 23.1, "hyla": 36.9}),
    ],
)
def test_the_papers_models(task, stream, attention):
    for name, scale in attention.items():
        config = config_from_tree(merge(load_preset(task, "paper"), {"model": {"attention": name}}))
        model = Transformer(config.model)
        model.reset_parameters(torch.Generator().manual_seed(0))
        batch = config.build_task().batch("train", seed=0, index=0, batch_size=128)
        first, *_ = branch_scales(model, batch.inputs)
        assert first.stream == pytest.approx(stream, rel=0.02)
        assert first.attention == pytest.approx(scale, rel=0.03)
        assert first.feed_forward == pytest.approx(0.7, rel=0.1)
        assert (first.attention_ratio > 3) == (name != "softmax")


def test_measuring_leaves_no_trace():
    model, x = tiny(), torch.randn(2, 6, 5)
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    parameters = {name: value.clone() for name, value in model.state_dict().items()}
    before = torch.get_rng_state()
    branch_scales(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, parameters[name])
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_hooks_go_when_the_model_fails():
    model = tiny()
    with pytest.raises(ValueError, match="shape"):
        branch_scales(model, torch.randn(2, 6, 4))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_measured_in_float32(dtype):
    model, x = tiny(), torch.randn(64, 6, 5)
    want = branch_scales(model, x)
    got = branch_scales(model.to(dtype), x.to(dtype))
    assert got[0].stream == pytest.approx(std(model.embedding(x.to(dtype))), rel=1e-5)
    for one, other in zip(got, want, strict=True):
        assert vars(one) == pytest.approx(
            vars(other), rel=0.05 if dtype == torch.bfloat16 else 1e-5
        )


class Wrapped(nn.Module):
    """A model with a transformer inside."""

    def __init__(self, transformer: Transformer):
        super().__init__()
        self.inner = transformer

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, last=2, details=True).logits


def test_tokens_and_transformers_inside_other_models():
    tokens = torch.randint(11, (3, 6))
    language = tiny(inputs="tokens", input_dim=11, positions="rotary", causal=True)
    assert len(branch_scales(language, tokens)) == 2
    model, x = tiny(), torch.randn(4, 6, 5)
    # Codes beside the output and a last block that computes two positions are both told apart.
    inside, alone = branch_scales(Wrapped(model), x), branch_scales(model, x)
    assert vars(inside[0]) == pytest.approx(vars(alone[0]), rel=1e-5)
    assert inside[1].stream == pytest.approx(alone[1].stream, rel=1e-5)
    with pytest.raises(ValueError, match="Linear holds no block"):
        branch_scales(nn.Linear(2, 2), torch.randn(1, 2))


def test_numbers_that_overflow_count_as_large():
    large = BranchScales(stream=1.0, attention=math.nan, between=0.0, feed_forward=1.0)
    assert large.attention_ratio == large.feed_forward_ratio == math.inf

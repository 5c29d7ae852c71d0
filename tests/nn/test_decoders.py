"""Language models by size, and what they come to."""

import pytest
import torch
from torch import nn

from hyla.nn import Transformer
from hyla.nn.decoders import (
    DECODERS,
    count_parameters,
    decoder_config,
    training_flops_per_token,
)


def sizes(size: str, **changes):
    with torch.device("meta"):
        config = decoder_config(size, vocab_size=32_000, sequence_length=512, **changes)
        return count_parameters(Transformer(config))


def test_the_papers_model():
    tied, untied = sizes("paper"), sizes("paper", tied=False)
    assert tied.total == 35_299_328  # "50M" is neither: 35 M tied, 52 M untied
    assert untied.total == 51_715_328
    assert tied.without_embeddings == untied.without_embeddings == 18_915_328
    assert str(tied) == "35,299,328 parameters (18,915,328 without embeddings and logits)"


def test_sizes_grow():
    totals = [sizes(size).total for size in DECODERS]
    assert totals == sorted(totals)


def test_heads_follow_the_embedding():
    config = decoder_config("nano", vocab_size=10, sequence_length=8, embed_dim=32)
    assert (config.qk_dim, config.v_dim) == (32, 32)
    assert decoder_config("nano", vocab_size=10, sequence_length=8, v_dim=16).v_dim == 16


def test_unknown_sizes_are_named():
    with pytest.raises(ValueError, match=r"size 'papr' is unknown \(did you mean 'paper'\?\)"):
        decoder_config("papr", vocab_size=10, sequence_length=8)


@pytest.mark.parametrize("attention", ["softmax", "hyla"])
@pytest.mark.parametrize("feed_forward", ["gelu", "swiglu"])
@pytest.mark.parametrize("key_heads", [None, 2])
def test_flops_are_those_that_are_counted(attention, feed_forward, key_heads):
    """Against PyTorch's own counter, which counts all pairs: so without causality here."""
    from torch.utils.flop_counter import FlopCounterMode

    config = decoder_config(
        "nano",
        vocab_size=96,
        sequence_length=24,
        causal=False,
        attention=attention,
        feed_forward=feed_forward,
        num_key_heads=key_heads,
        backend="reference",
    )
    model, tokens = Transformer(config), torch.randint(96, (2, 24))
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    counted = counter.get_total_flops() / tokens.numel()
    assert training_flops_per_token(config) == pytest.approx(counted, rel=1e-6)


@pytest.mark.parametrize("attention", ["hyla", "softmax", "hyla_deep"])
@pytest.mark.parametrize("positions", ["rotary", "t5"])
def test_computing_for_long_sequences_changes_only_rounding(attention, positions):
    config = decoder_config(
        "nano", vocab_size=40, sequence_length=16, attention=attention, positions=positions
    )
    model = Transformer(config)
    tokens, results = torch.randint(40, (2, 12)), []
    for _ in range(2):
        out = model(tokens)
        results.append((out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))))
        model.for_long_sequences()
    for plain, joint in zip(*results, strict=True):
        torch.testing.assert_close(plain, joint, rtol=1e-4, atol=1e-4)
    cache = model.new_cache(20)
    parts = [model(part, cache=cache) for part in tokens.split([5, 7], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens))


def test_linear_attention_needs_no_pairs():
    def flops(attention, length):
        return training_flops_per_token(
            decoder_config("paper", vocab_size=10, sequence_length=length, attention=attention)
        )

    assert flops("linear", 512) == flops("linear", 8192) < flops("softmax", 512)
    assert flops("linear", 16) == flops("softmax", 16)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler
def test_a_decoder_is_one_graph():
    config = decoder_config("nano", vocab_size=40, sequence_length=16, attention="softmax")
    model = Transformer(config).for_long_sequences()
    torch.compiler.reset()
    compiled = torch.compile(model.features, fullgraph=True, backend="aot_eager")
    tokens = torch.randint(40, (2, 16))
    torch.testing.assert_close(compiled(tokens), model.features(tokens))


class Adapter(nn.Linear):
    """A linear layer that does more than its weight says, as adapters do."""

    def forward(self, input):
        return 2 * super().forward(input)


def test_computing_for_long_sequences_keeps_adapters():
    config = decoder_config("nano", vocab_size=40, sequence_length=16)
    model, tokens = Transformer(config), torch.randint(40, (2, 9))
    for block in model.blocks:
        adapter, layer = Adapter(64, 64), block.get_submodule("attention")
        adapter.load_state_dict(layer.get_submodule("k_proj").state_dict())
        layer.k_proj = adapter
    want = model(tokens)
    torch.testing.assert_close(model.for_long_sequences()(tokens), want)

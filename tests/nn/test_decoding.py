"""Decoding with a key-value cache equals the full causal pass."""

import pytest
import torch

from hyla.nn import KeyValueCache, MultiHeadAttention, Transformer, TransformerConfig

LENGTH = 9


def model(**changes) -> Transformer:
    config = {
        "input_dim": 11,
        "output_dim": 11,
        "sequence_length": 6,
        "embed_dim": 12,
        "qk_dim": 12,
        "v_dim": 12,
        "mlp_dim": 16,
        "num_heads": 3,
        "num_layers": 2,
        "inputs": "tokens",
        "causal": True,
    }
    return Transformer(TransformerConfig(**(config | changes))).double()


@pytest.mark.parametrize("chunks", [[1] * LENGTH, [4, 1, 1, 1, 1, 1], [2, 5, 2], [LENGTH]], ids=str)
@pytest.mark.parametrize("positions", ["rotary", "t5", "none"])
@pytest.mark.parametrize("attention", ["hyla", "softmax", "linear", "hyla_deep"])
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(attention, positions, chunks):
    decoder = model(attention=attention, positions=positions)
    tokens = torch.randint(11, (2, LENGTH))
    cache = decoder.new_cache(LENGTH + 2)
    parts = [decoder(part, cache=cache) for part in tokens.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), decoder(tokens))
    assert [layer.length for layer in cache] == [LENGTH, LENGTH]


@pytest.mark.parametrize("positions", ["rotary", "t5"])
@torch.no_grad()
def test_prefill_may_ask_for_the_last_logits_alone(positions):
    decoder = model(positions=positions)
    tokens = torch.randint(11, (2, LENGTH))
    cache = decoder.new_cache(LENGTH)
    prefix = decoder(tokens[:, :5], cache=cache, last=1)
    rest = decoder(tokens[:, 5:], cache=cache, last=2)
    full = decoder(tokens)
    torch.testing.assert_close(prefix, full[:, 4:5])
    torch.testing.assert_close(rest, full[:, -2:])


@torch.no_grad()
def test_cached_decoding_with_padding_on_the_left():
    decoder = model(positions="none")
    tokens = torch.randint(11, (2, LENGTH))
    real = torch.ones(2, LENGTH, dtype=torch.bool)
    real[1, :3] = False
    cache = decoder.new_cache(LENGTH)
    parts = [
        decoder(tokens[:, i : i + 1], cache=cache, mask=real[:, None, None, : i + 1])
        for i in range(LENGTH)
    ]
    alone = decoder(tokens[1:, 3:])
    torch.testing.assert_close(torch.cat(parts, dim=1)[1:, 3:], alone)


@torch.no_grad()
def test_layer_with_a_cache_of_its_own():
    layer = MultiHeadAttention(12, 3, rotary=True)
    x, cache = torch.randn(2, 5, 12), KeyValueCache(5)
    first = layer(x[:, :3], causal=True, cache=cache)
    rest, code = layer(x[:, 3:], causal=True, cache=cache, return_code=True)
    torch.testing.assert_close(torch.cat([first, rest], dim=1), layer(x, causal=True))
    assert code.shape == (2, 3, 2, 5)


def test_overflow_is_named_and_changes_nothing():
    cache = KeyValueCache(4)
    keys = torch.randn(1, 3, 2, 5)
    cache.append(keys, keys)
    with pytest.raises(ValueError, match=r"holds 4 tokens and 6 are needed; .* larger max_length"):
        cache.append(keys, keys)
    assert cache.length == 3


def test_one_cache_per_batch():
    cache = KeyValueCache(4)
    cache.append(torch.randn(2, 1, 2, 5), torch.randn(2, 1, 2, 3))
    with pytest.raises(ValueError, match="filled with a batch of 2, now 1 sequences came"):
        cache.append(torch.randn(1, 1, 2, 5), torch.randn(1, 1, 2, 3))


def test_cache_returns_everything_so_far():
    cache = KeyValueCache(6)
    keys, values = torch.randn(2, 5, 2, 4), torch.randn(2, 5, 2, 3)
    cache.append(keys[:, :2], values[:, :2])
    got_keys, got_values = cache.append(keys[:, 2:], values[:, 2:])
    assert torch.equal(got_keys, keys)
    assert torch.equal(got_values, values)


def test_cache_of_no_length():
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        KeyValueCache(0)


def test_a_model_that_is_not_causal_cannot_decode():
    with pytest.raises(ValueError, match="only a causal model can decode with a cache"):
        model(causal=False).new_cache(4)


def test_a_cache_of_another_depth_is_named():
    decoder = model()
    with pytest.raises(ValueError, match="cache has 1 layers, the model 2"):
        decoder(torch.zeros(1, 1, dtype=torch.long), cache=decoder.new_cache(4)[:1])

"""Generation: cached equals uncached, and sampling follows the model's distribution."""

import pytest
import torch

from hyla.nn import Transformer
from hyla.nn.decoders import decoder_config
from hyla.nn.generate import choose, generate


def model(**changes) -> Transformer:
    torch.manual_seed(0)
    config = decoder_config("nano", vocab_size=40, sequence_length=16, **changes)
    return Transformer(config).double().eval()


PROMPT = torch.randint(40, (3, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("attention", ["hyla", "softmax", "linear", "hyla_deep"])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_cached_equals_uncached(attention, temperature):
    decoder = model(attention=attention)
    results = [
        generate(
            decoder,
            PROMPT,
            max_new_tokens=20,
            temperature=temperature,
            top_p=0.9,
            generator=torch.Generator().manual_seed(3),
            cached=cached,
        )
        for cached in (True, False)
    ]
    assert results[0].shape == (3, 25)
    assert torch.equal(*results)
    assert torch.equal(results[0][:, :5], PROMPT)


def test_greedy_takes_the_most_likely_token():
    decoder = model()
    text = generate(decoder, PROMPT, max_new_tokens=4, temperature=0)
    for length in range(5, 9):
        assert torch.equal(text[:, length], decoder(text[:, :length])[:, -1].argmax(-1))


def test_a_stopped_sequence_stays_stopped():
    decoder = model()
    free = generate(decoder, PROMPT, max_new_tokens=12, temperature=0)
    stop = int(free[0, 7])
    text = generate(decoder, PROMPT, max_new_tokens=12, temperature=0, stop_token=stop)
    for row, whole in zip(text, free, strict=True):
        new, wanted = row[5:].tolist(), whole[5:].tolist()
        if stop in wanted:
            first = wanted.index(stop)
            assert new[: first + 1] == wanted[: first + 1]
            assert set(new[first:]) == {stop}
        else:
            assert new == wanted[: len(new)]
    alone = generate(decoder, PROMPT[:1], max_new_tokens=12, temperature=0, stop_token=stop)
    assert alone.shape[1] == 8  # nothing is computed after the end


def test_sampling_follows_the_distribution():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(20_000, 4)
    generator = torch.Generator().manual_seed(0)

    def shares(temperature, top_p):
        drawn = choose(logits, temperature, top_p, generator)
        return torch.bincount(drawn, minlength=4) / len(drawn)

    torch.testing.assert_close(shares(1.0, 1.0), logits[0].exp(), atol=0.015, rtol=0)
    cold = torch.softmax(logits[0] * 2, -1)
    torch.testing.assert_close(shares(0.5, 1.0), cold, atol=0.015, rtol=0)
    kept = torch.tensor([0.5, 0.3, 0.0, 0.0]) / 0.8
    torch.testing.assert_close(shares(1.0, 0.7), kept, atol=0.015, rtol=0)
    assert shares(1.0, 1e-6)[0] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, "temperature must be finite and not negative, got -1.0"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\], got 0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"tokens": torch.zeros(1, 0, dtype=torch.long)}, r"tokens must have shape \[B, T\]"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {"tokens": PROMPT, "max_new_tokens": 2} | change
    with pytest.raises(ValueError, match=message):
        generate(model(), **arguments)


@pytest.mark.parametrize("attention", ["hyla", "softmax"])
def test_recomputed_features_have_the_same_gradients(attention):
    decoder = model(attention=attention)
    gradients = []
    for recompute in (False, True):
        decoder.zero_grad()
        decoder.features(PROMPT, recompute=recompute).square().sum().backward()
        gradients.append([p.grad.clone() for p in decoder.parameters() if p.grad is not None])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_recomputing_would_fill_a_cache_twice():
    decoder = model()
    with pytest.raises(ValueError, match="recompute takes no cache"):
        decoder.features(PROMPT, cache=decoder.new_cache(20), recompute=True)

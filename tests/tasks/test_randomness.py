"""The generator is exact, and its numbers look independent along every axis of their address."""

import pytest
import torch

from hyla.tasks.randomness import (
    Keys,
    RandomStream,
    arrangement_radices,
    counters,
    digest_words,
    random_words,
    to_arrangements,
    to_integers,
    to_uniform,
)

NUM_INSTANCES = 4000
NUM_COUNTERS = 64


def sample_words(*, seed=0, name="stream", start=0):
    """Words [instances, counters] of one seed."""
    keys = RandomStream(seeds=[seed], name=name, device="cpu").keys(
        torch.arange(start, start + NUM_INSTANCES)
    )
    column = Keys(*(half[0, :, None] for half in keys))
    return random_words(column, counters(0, NUM_COUNTERS, device="cpu"))


def chi_square_z(counts):
    """The chi-square statistic against uniformity, in standard deviations from its mean."""
    counts = counts.double()
    expected = counts.sum(-1, keepdim=True) / counts.shape[-1]
    degrees = counts.shape[-1] - 1
    return (((counts - expected) ** 2 / expected).sum(-1) - degrees) / (2 * degrees) ** 0.5


def joint_z(a, b, shift):
    """Whether four bits of `a` and of `b` are jointly uniform."""
    cells = ((a >> shift) & 15) * 16 + ((b >> shift) & 15)
    return chi_square_z(torch.bincount(cells.flatten().long(), minlength=256))


def signed(x):
    return (x + 2**31) % 2**32 - 2**31


def reference_word(seed, name, instance, counter):
    """The same number in exact Python integers."""
    unsigned, multiply_1, multiply_2 = 2**32 - 1, 0x7FEB352D, 0x846CA68B
    halves = []
    for half in range(2):
        salt = digest_words(f"{name}/{seed}/{half}", 2)
        x = (instance ^ salt[0]) & unsigned
        x = ((x ^ x >> 16) * multiply_1) & unsigned
        x = ((x ^ x >> 15 ^ (salt[1] & unsigned)) * multiply_2) & unsigned
        halves.append(x ^ x >> 16)
    x = signed(((halves[0] ^ digest_words(f"counter/{counter}", 1)[0]) & unsigned) * multiply_1)
    x = signed(((x ^ x >> 15 ^ halves[1]) & unsigned) * multiply_2)
    return x ^ x >> 15


@pytest.mark.parametrize("start", [0, 10**6, 2**31 - 2, 2**32 - NUM_INSTANCES])
def test_words_equal_exact_integer_arithmetic(start):
    words = sample_words(seed=3, name="exact", start=start)
    for instance in (0, 1, 2, 3, NUM_INSTANCES - 1):
        for counter in (0, 5, NUM_COUNTERS - 1):
            expected = reference_word(3, "exact", start + instance, counter)
            assert words[instance, counter].item() == expected


def test_first_words_never_change():
    # Published results name seeds: the numbers behind a seed are part of the interface.
    assert sample_words()[:2, :2].tolist() == [[1433469823, 789054054], [1034197921, 564546688]]


def test_words_are_31_bit():
    words = sample_words()
    assert words.min() >= 0
    assert words.max() > 0.999 * 2**31


def test_every_bit_is_fair_at_every_counter():
    words = sample_words()
    shares = torch.stack([((words >> bit) & 1).double().mean(0) for bit in range(31)])
    z = (shares - 0.5) * 2 * NUM_INSTANCES**0.5
    assert z.abs().max() < 5  # of 1,984; 5 sigma has probability 1e-3
    assert 0.9 < z.std() < 1.1


@pytest.mark.parametrize("shift", [0, 10, 20, 27])
def test_counters_are_pairwise_independent(shift):
    bits = torch.nn.functional.one_hot(((sample_words() >> shift) & 7).long(), 8).float()
    pairs = torch.einsum("nia,njb->ijab", bits, bits).flatten(-2)
    z = chi_square_z(pairs)[torch.ones(NUM_COUNTERS, NUM_COUNTERS).triu(1).bool()]
    assert z.max() < 6.5  # of 2,016; chi-square with 63 degrees has a heavy right tail
    assert z.mean().abs() < 0.15
    assert 0.85 < z.std() < 1.15


@pytest.mark.parametrize("shift", [0, 10, 20, 27])
def test_neighbouring_addresses_are_independent(shift):
    words = sample_words()
    others = {
        "next counter": (words[:, :-1], words[:, 1:]),
        "next instance": (words[:-1], words[1:]),
        "next batch": (words[:-128], words[128:]),
        "next seed": (words, sample_words(seed=1)),
        "other stream": (words, sample_words(name="stream2")),
    }
    for what, (a, b) in others.items():
        assert abs(joint_z(a, b, shift)) < 5, what
        correlation = ((to_uniform(a) - 0.5) * (to_uniform(b) - 0.5)).mean() * 12
        assert abs(correlation) * a.numel() ** 0.5 < 5, what


def test_uniform_is_uniform_below_one_and_exact_to_negate():
    uniform = to_uniform(sample_words())
    assert uniform.dtype == torch.float32
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(chi_square_z(torch.bincount((uniform * 1000).long().flatten()))) < 5
    assert torch.equal((1 - uniform).double(), 1 - uniform.double())
    extremes = torch.tensor([0, 2**31 - 1], dtype=torch.int32)
    assert to_uniform(extremes).tolist() == [0.0, 1 - 2.0**-24]


@pytest.mark.parametrize("high", [1, 2, 3, 8, 66, 248, 1000])
def test_integers_are_uniform_in_range(high):
    values = to_integers(sample_words(), high)
    assert values.min() == 0
    assert values.max() == high - 1
    if high > 1:
        assert abs(chi_square_z(torch.bincount(values.flatten(), minlength=high))) < 5


@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 3), (4, 4), (5, 2), (8, 3)])
def test_arrangements_are_distinct_and_uniform(n, k):
    words = sample_words().T[:k].contiguous()
    arrangements = to_arrangements(words, arrangement_radices(n, k, device="cpu"))
    assert arrangements.shape == words.shape
    assert arrangements.min() >= 0
    assert arrangements.max() < n
    assert all(len(set(column)) == k for column in arrangements.T.tolist())
    codes = (arrangements * n ** torch.arange(k)[:, None]).sum(0)
    _, counts = codes.unique(return_counts=True)
    assert len(counts) == torch.arange(n, n - k, -1).prod()
    if len(counts) > 1:
        assert abs(chi_square_z(counts)) < 5

"""Random numbers that are computed: a pure function of (seed, stream, instance, counter).

A moving generator makes batch 1,000 depend on the 999 before it. Here every number has an address
and is hashed from it, so any batch of any split can be had at any time, on any device, with the
same bits, and a sampler captured in a CUDA graph yields fresh batches while the instance numbers
are advanced in place.

Two stages keep it cheap. `RandomStream.keys` hashes each instance number into two 32-bit keys (few
elements, full strength); `random_words` combines the keys with a table of random constants, one a
counter, in two multiplications (many elements, as few operations as the statistics allow).

The arithmetic is int32 with wrap-around. Eager PyTorch, Triton and the C++ of torch.compile all
compile these products to the plain machine multiplication; a C++ compiler could only take advantage
of a signed overflow if it knew the signs of the operands, and they come from data. The tests hold
eager and compiled results to exact Python integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int32, Int64
from torch import Tensor

MAX_INSTANCES = 2**32
"""Instance numbers are hashed by their lower 32 bits: a stream repeats itself after that many."""

WORD_BITS = 31
"""`random_words` are uniform in [0, 2^31)."""

_UNIFORM_BITS = 24  # what float32 can hold exactly

# Odd multipliers of the well-known two-round 32-bit finaliser ("lowbias32"), as signed integers.
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - 2**32


class Keys(NamedTuple):
    """Two independent 32-bit hashes of each instance's address."""

    first: Int32[Tensor, "*shape"]
    second: Int32[Tensor, "*shape"]


class RandomStream:
    """The random numbers of one stream, for a population of seeds.

    Streams with different names, and seeds, are independent of each other. The member of the
    population that has seed s sees the same numbers whatever the other seeds are.
    """

    def __init__(self, *, seeds: Sequence[int], name: str, device: torch.device | str) -> None:
        salts = [[digest_words(f"{name}/{seed}/{half}", 2) for seed in seeds] for half in range(2)]
        self._salts = torch.tensor(salts, dtype=torch.int32, device=device)  # [2, P, 2]

    def keys(self, instances: Int64[Tensor, "b"]) -> Keys:
        """The keys [P, B] of the given instance numbers."""
        x = instances.to(torch.int32) ^ self._salts[..., :1]
        x = (x ^ _logical_shift(x, 16)) * _MULTIPLIER_1
        x = (x ^ _logical_shift(x, 15) ^ self._salts[..., 1:]) * _MULTIPLIER_2
        x = x ^ _logical_shift(x, 16)
        first, second = x.unbind(0)
        return Keys(first, second)


def counters(start: int, count: int, *, device: torch.device | str) -> Int32[Tensor, " count"]:
    """Addresses `start` ... `start + count - 1` within an instance, for `random_words`."""
    constants = [digest_words(f"counter/{n}", 1)[0] for n in range(start, start + count)]
    return torch.tensor(constants, dtype=torch.int32, device=device)


def random_words(keys: Keys, counters: Int32[Tensor, "..."]) -> Int32[Tensor, "..."]:
    """Uniform integers in [0, 2^31), one for each pair of a key and a counter (broadcast).

    The shifts carry the sign along, so that x and ~x give the same word: that costs the 32nd bit
    and saves the masks a logical shift would need.
    """
    x = counters ^ keys.first
    x = x.mul_(_MULTIPLIER_1)
    x = x.bitwise_xor_(x >> 15).bitwise_xor_(keys.second)
    x = x.mul_(_MULTIPLIER_2)
    return x.bitwise_xor_(x >> 15)


def to_uniform(words: Int32[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Float32 numbers in [0, 1): multiples of 2^-24, so that 1 - x is exact too."""
    return (words & (2**_UNIFORM_BITS - 1)).to(torch.float32).mul_(2.0**-_UNIFORM_BITS)


def to_integers(
    words: Int32[Tensor, "*shape"], high: int | Int64[Tensor, "..."]
) -> Int64[Tensor, "*shape"]:
    """Integers in [0, high); `high` is a number or a tensor that broadcasts.

    The scaling is uniform up to high / 2^31.
    """
    return (words.to(torch.int64) * high) >> WORD_BITS


def to_arrangements(
    words: Int32[Tensor, "k *shape"], radices: Int[Tensor, " k"]
) -> Int64[Tensor, "k *shape"]:
    """K distinct integers in [0, n) in random order, along the leading axis.

    `radices` is n, n - 1, ..., n - k + 1 (see `arrangement_radices`), so k = n gives a permutation.
    Each word picks a position among the integers that are still free; the loop turns positions
    into integers (a Lehmer code), without a table or a sort.
    """
    picks = list(to_integers(words, radices.view(-1, *[1] * (words.ndim - 1))).unbind(0))
    for earlier in reversed(range(len(picks))):
        for later in range(earlier + 1, len(picks)):
            picks[later] = picks[later] + (picks[later] >= picks[earlier])
    return torch.stack(picks)


def arrangement_radices(n: int, k: int, *, device: torch.device | str) -> Int64[Tensor, " k"]:
    """The table that `to_arrangements` needs for k out of n."""
    return torch.arange(n, n - k, -1, dtype=torch.int64, device=device)


def digest_words(address: str, count: int) -> list[int]:
    """Up to eight signed 32-bit integers from the SHA-256 of a text."""
    digest = hashlib.sha256(address.encode()).digest()
    return [int.from_bytes(digest[4 * i : 4 * i + 4], "little", signed=True) for i in range(count)]


def _logical_shift(x: Int32[Tensor, "*shape"], bits: int) -> Int32[Tensor, "*shape"]:
    return (x >> bits) & (2 ** (32 - bits) - 1)

"""Which tokens are trained on at which step: a function of (seed, step), with nothing to save.

A split is cut into windows of T tokens; each has one token more, the last target. An epoch goes
through all windows once, in an order of its own. The order is computed, not stored: a Feistel
network is a permutation of numbers of 2n bits, and applying it until the result is below N makes
it one of the N windows, for thousands as for billions of them.
"""

import numpy as np

from hyla._errors import check_positive
from hyla.tasks.language.corpora import CorpusError
from hyla.tasks.language.corpus import Tokens
from hyla.tasks.randomness import digest_words

_ROUNDS = 6
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Windows:
    """The windows of T tokens of a split."""

    def __init__(self, tokens: Tokens, length: int):
        check_positive(length=length)
        self._tokens = tokens
        self.length = length
        self.count = (len(tokens) - 1) // length
        if self.count < 1:
            raise CorpusError(
                f"{len(tokens)} tokens are too few for one sequence of {length}; "
                "use a shorter sequence_length or more text"
            )

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Return the windows of these numbers as tokens [B, T + 1], int64."""
        out = np.empty((len(numbers), self.length + 1), dtype=np.int64)
        for row, number in enumerate(numbers.tolist()):
            out[row] = self._tokens.read(number * self.length, self.length + 1)
        return out


class TrainingOrder:
    """The windows of each training step."""

    def __init__(self, windows: Windows, *, batch_size: int, seed: int):
        check_positive(batch_size=batch_size)
        self._windows = windows
        self._batch_size = batch_size
        self._seed = seed

    def numbers(self, step: int) -> np.ndarray:
        """Return the numbers of the windows of a step [batch_size]."""
        drawn = step * self._batch_size + np.arange(self._batch_size)
        epochs, places = np.divmod(drawn, self._windows.count)
        numbers = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            of_epoch = epochs == epoch
            numbers[of_epoch] = permuted(
                places[of_epoch], self._windows.count, f"{self._seed}/{epoch}"
            )
        return numbers

    def batch(self, step: int, *, rank: int = 0, ranks: int = 1) -> np.ndarray:
        """Return a rank's share of the batch of a step as tokens [batch_size / ranks, T + 1].

        The shares of all ranks, one after the other, are the batch of a single one.
        """
        if self._batch_size % ranks:
            raise ValueError(
                f"batch_size {self._batch_size} does not divide among {ranks} ranks; "
                f"use a multiple such as {ranks * max(1, round(self._batch_size / ranks))}"
            )
        share = self._batch_size // ranks
        return self._windows.read(self.numbers(step)[rank * share : (rank + 1) * share])


def permuted(places: np.ndarray, count: int, address: str) -> np.ndarray:
    """Return where a permutation of 0 ... count - 1, one for each `address`, puts `places`."""
    half = np.uint64(max(1, (int(count - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(word & 0xFFFFFFFF) for word in digest_words(f"order/{address}", _ROUNDS)]
    x = places.astype(np.uint64)
    outside = np.ones(x.shape, dtype=bool)
    while outside.any():
        left, right = x[outside] >> half, x[outside] & low
        for key in keys:
            mixed = (right + key) * _MULTIPLIER  # wraps around
            left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(16) & low)
        x[outside] = (left << half) | right
        outside = x >= np.uint64(count)
    return x.astype(np.int64)

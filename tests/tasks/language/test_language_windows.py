"""The order of training data: a permutation a epoch, a function of (seed, step), split by rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyla.tasks.language import CorpusError, TrainingOrder, Windows
from hyla.tasks.language.corpus import Tokens
from hyla.tasks.language.windows import permuted

TOKENS = Tokens([np.arange(50, dtype="<u2"), np.arange(50, 107, dtype="<u2")])


def order(batch_size: int = 4, seed: int = 0, length: int = 5) -> TrainingOrder:
    return TrainingOrder(Windows(TOKENS, length), batch_size=batch_size, seed=seed)


@given(st.integers(1, 3000), st.integers(0, 10))
def test_permutations_are_permutations(count, key):
    places = permuted(np.arange(count), count, str(key))
    assert sorted(places.tolist()) == list(range(count))


def test_permutations_of_billions_need_no_table():
    count = 250_000_000_000
    places = permuted(np.arange(10_000) * 7919, count, "0")
    assert len(np.unique(places)) == 10_000
    assert places.min() >= 0
    assert places.max() < count
    assert 0.45 < places.mean() / count < 0.55


def test_permutations_look_random():
    count = 4096
    a, b = (permuted(np.arange(count), count, key) for key in "ab")
    assert abs(np.corrcoef(a, np.arange(count))[0, 1]) < 0.05
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
    assert (np.diff(a) == 1).mean() < 0.01
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.05


def test_windows_share_one_token():
    windows = Windows(TOKENS, 5)
    assert windows.count == 21
    rows = windows.read(np.array([0, 9, 20]))
    assert rows.tolist() == [list(range(start, start + 6)) for start in (0, 45, 100)]
    assert rows.dtype == np.int64


def test_an_epoch_has_every_window_once_and_the_next_another_order():
    drawn = np.concatenate([order().numbers(step) for step in range(11)])  # 44 > 2 · 21
    first, second = drawn[:21], drawn[21:42]
    assert sorted(first) == sorted(second) == list(range(21))
    assert not np.array_equal(first, second)


def test_a_step_needs_no_other_step():
    assert np.array_equal(order().numbers(7), order().numbers(7))
    assert not np.array_equal(order().numbers(7), order(seed=1).numbers(7))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_shares_of_all_ranks_are_the_batch(ranks):
    for step in (0, 5, 6):
        shares = [order().batch(step, rank=rank, ranks=ranks) for rank in range(ranks)]
        assert np.array_equal(np.concatenate(shares), order().batch(step))


def test_batches_that_do_not_divide():
    with pytest.raises(ValueError, match="batch_size 4 does not divide among 3 ranks"):
        order().batch(0, ranks=3)


def test_too_few_tokens():
    with pytest.raises(CorpusError, match="107 tokens are too few for one sequence of 107"):
        Windows(TOKENS, 107)
    assert Windows(TOKENS, 106).count == 1

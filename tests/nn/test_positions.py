"""T5's relative bias and rotary positions."""

from fractions import Fraction
from typing import Any

import pytest
import torch

from hyla.nn import T5RelativeBias, rotary
from hyla.nn.positions import rotary_table


def buckets(tokens: int, **options) -> torch.Tensor:
    """The bucket of each query-key pair: a bias whose table holds the buckets' numbers."""
    bias = T5RelativeBias(1, **options)
    bias.load_state_dict({"table": torch.arange(float(options["num_buckets"]))[None]})
    return bias(tokens, tokens)[0, 0].long()


def test_unidirectional_bias_puts_the_future_into_bucket_0():
    got = buckets(6, num_buckets=12, max_distance=12)
    assert got[0].tolist() == [0] * 6
    assert got[5].tolist() == [5, 4, 3, 2, 1, 0]


def test_bidirectional_bias_mirrors_past_and_future():
    got = buckets(40, num_buckets=16, max_distance=32, bidirectional=True)
    past, future = got.tril(-1), got.triu(1)
    off_diagonal = torch.ones(40, 40).triu(1).bool()
    assert torch.equal(future[off_diagonal], past.T[off_diagonal] + 8)
    assert (got.diagonal() == 0).all()
    assert past.max() == 7
    assert future.max() == 15
    last = got[39].flip(0)  # by growing distance
    assert last[:5].tolist() == [0, 1, 2, 3, 4]
    assert (last.diff() >= 0).all()
    assert (last[32:] == 7).all()


@pytest.mark.parametrize(
    ("num_buckets", "max_distance"),
    [(3, 16), (9, 36), (9, 128), (19, 16), (32, 128), (36, 32), (36, 36), (54, 64)],
)
def test_logarithmic_buckets_are_exact_where_the_logarithms_divide(num_buckets, max_distance):
    exact = num_buckets // 2
    got = buckets(max_distance + 5, num_buckets=num_buckets, max_distance=max_distance)
    steps, growth = num_buckets - exact, Fraction(max_distance, exact)
    for distance, bucket in enumerate(got[-1].flip(0).tolist()):
        if distance < exact:
            assert bucket == distance
            continue
        # bucket - exact = floor(steps · log(distance / exact) / log(max_distance / exact)), cut off
        power = Fraction(distance, exact) ** steps
        assert growth ** (bucket - exact) <= power, distance
        assert bucket == num_buckets - 1 or power < growth ** (bucket - exact + 1), distance


@pytest.mark.parametrize(
    "options",
    [
        {"num_buckets": 1, "max_distance": 1},
        {"num_buckets": 1, "max_distance": 5},
        {"num_buckets": 2, "max_distance": 1},
        {"num_buckets": 8, "max_distance": 2},
        {"num_buckets": 8, "max_distance": 4},
        {"num_buckets": 2, "max_distance": 1, "bidirectional": True},
        {"num_buckets": 8, "max_distance": 2, "bidirectional": True},
    ],
    ids=str,
)
def test_few_buckets_and_short_distances_work(options):
    got = buckets(7, **options)
    assert got.min() == 0
    assert got.max() < options["num_buckets"]
    assert (got[-1].flip(0).diff() >= 0).all()


def test_bias_of_the_last_queries_is_the_end_of_the_whole():
    bias = T5RelativeBias(2, num_buckets=8, max_distance=8)
    torch.testing.assert_close(bias(3, 10), bias(10, 10)[:, :, 7:])
    assert bias(3, 10).shape == (1, 2, 3, 10)


def test_table_gets_a_gradient_for_the_buckets_in_use():
    bias = T5RelativeBias(2, num_buckets=8, max_distance=8)
    bias(3, 3).sum().backward()
    assert bias.table.grad[0].tolist() == [6, 2, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["num_heads", "num_buckets", "max_distance"])
def test_bias_names_a_size_that_is_not_positive(name):
    sizes: dict[str, Any] = {"num_heads": 2, "num_buckets": 4, "max_distance": 4} | {name: 0}
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0"):
        T5RelativeBias(sizes.pop("num_heads"), **sizes)


def test_bidirectional_bias_needs_an_even_number_of_buckets():
    with pytest.raises(ValueError, match="num_buckets must be even when bidirectional, got 9"):
        T5RelativeBias(2, num_buckets=9, max_distance=9, bidirectional=True)


def rotary_scores(q: torch.Tensor, k: torch.Tensor, start: int) -> torch.Tensor:
    return torch.einsum("bqhd,bkhd->bhqk", rotary(q, start=start), rotary(k, start=start))


def test_rotary_scores_depend_on_differences_of_positions_alone():
    q, k = torch.randn(2, 1, 1, 2, 8, dtype=torch.float64).expand(-1, -1, 6, -1, -1)
    scores = rotary_scores(q, k, 0)
    torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(rotary_scores(q, k, 1000), scores, rtol=0, atol=1e-10)
    assert (scores[..., 0, :] - scores[..., 0, :1]).abs().max() > 0.1


def test_rotary_rotates_pairs_by_position_and_frequency():
    x = torch.randn(1, 3, 1, 4, dtype=torch.float64)
    got = torch.view_as_complex(rotary(x, start=5).unflatten(-1, (2, 2)).mT.contiguous())
    want = torch.view_as_complex(x.unflatten(-1, (2, 2)).mT.contiguous())
    angle = torch.tensor([5.0, 6.0, 7.0]).double()[:, None] * torch.tensor([1.0, 0.01]).double()
    torch.testing.assert_close(got, want * torch.exp(1j * angle)[:, None])


def test_rotary_at_position_0_is_the_identity():
    x = torch.randn(2, 1, 3, 6)
    assert torch.equal(rotary(x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_rotary_keeps_the_dtype_and_computes_in_float32_or_better(dtype):
    x = torch.randn(1, 4, 2, 8).to(dtype)
    got = rotary(x, start=3000)
    assert got.dtype == dtype
    torch.testing.assert_close(got, rotary(x.double(), start=3000).to(dtype), rtol=0.01, atol=1e-3)


def test_rotary_needs_an_even_head_size():
    with pytest.raises(ValueError, match="rotary positions need an even head size, got 5"):
        rotary(torch.randn(1, 2, 3, 5))


def test_a_table_of_angles_changes_nothing():
    table = rotary_table(0, 9, 4)
    x = torch.randn(2, 3, 2, 4)
    for start in (-2, 0, 2, 6, 7, 50):  # the first and the last two reach beyond the table
        assert torch.equal(rotary(x, start=start, table=table), rotary(x, start=start))
    precise = x.double()  # nor is it used where it is not precise enough
    assert torch.equal(rotary(precise, table=table), rotary(precise))
    assert table.rows(x.half(), 6) is not None
    for other in (x.double(), torch.randn(2, 3, 2, 6), torch.randn(2, 10, 2, 4)):
        assert table.rows(other, 0) is None

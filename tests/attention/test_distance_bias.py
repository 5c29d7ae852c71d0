"""Biases by distance on the paths that spread them; the kernel's own are in test_one_walk_host."""

from typing import Any

import pytest
import torch

from hyla.attention import DistanceBias, api, attention, dispatch, explain
from hyla.attention.distance import sum_by_distance
from hyla.attention.paths import chunking


def draw(Tq=5, Tk=7, H=3, D=4):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, Tq, H, D, generator=generator)
    k, v = (torch.randn(2, Tk, H, D, generator=generator) for _ in "kv")
    return (q, k, v), torch.randn(H, Tq + Tk - 1, generator=generator)


def by_hand(table, Tq, Tk):
    rows = [[table[..., key - query + Tq - 1] for key in range(Tk)] for query in range(Tq)]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


@pytest.mark.parametrize(("Tq", "Tk"), [(5, 7), (7, 5), (1, 4), (4, 1), (1, 1)])
def test_every_pair_has_the_bias_of_its_distance(Tq, Tk):
    _, table = draw(Tq, Tk)
    pairs = DistanceBias(table).for_pairs(Tk)
    assert torch.equal(pairs, by_hand(table, Tq, Tk))
    # Summing is the transpose of spreading.
    weight = torch.randn_like(pairs)
    torch.testing.assert_close(
        (pairs * weight).sum(), (table * sum_by_distance(weight)).sum(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(3, 11), (1, 11), (1, 3, 11), (2, 1, 11), (2, 3, 11)])
def test_attention_and_its_codes(shape):
    (q, k, v), _ = draw()
    table = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    pairs = by_hand(table, 5, 7)
    changes: list[dict[str, Any]] = [{}, {"causal": True}, {"attention": "softmax"}]
    for options in changes:
        for return_code in (True, [(1, 2), (-1, 0)]):
            every: dict[str, Any] = {**options, "return_code": return_code}
            got = attention(q, k, v, bias=DistanceBias(table), **every)
            torch.testing.assert_close(got, attention(q, k, v, bias=pairs, **every))


def test_attention_in_chunks(monkeypatch):
    monkeypatch.setattr(chunking, "MAX_PAIRWISE_ELEMENTS", 2 * 7 * 4 * 2)  # two queries at a time
    (q, k, v), table = draw()
    got = attention(q, k, v, bias=DistanceBias(table))
    torch.testing.assert_close(got, attention(q, k, v, bias=by_hand(table, 5, 7)))


def test_a_distance_of_minus_infinity_is_masked():
    (q, k, v), table = draw()
    table[:, :4] = -torch.inf  # keys before the query
    got = attention(q, k, v, bias=DistanceBias(table))
    mask = torch.ones(5, 7).triu().bool()
    zero = table.masked_fill(table == -torch.inf, 0.0)
    torch.testing.assert_close(got, attention(q, k, v, bias=by_hand(zero, 5, 7), mask=mask))


def test_under_torch_func():
    (q, k, v), table = draw()
    tables = torch.stack([table, -table])

    def loss(table, bias_of):
        return attention(q, k, v, bias=bias_of(table)).square().sum()

    def gradients(bias_of):
        return torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(tables, bias_of)

    torch.testing.assert_close(gradients(DistanceBias), gradients(lambda x: by_hand(x, 5, 7)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.zeros(3, 10), r"table of a DistanceBias has shape \(3, 10\) .* \[2, 3, 11\]"),
        (torch.zeros(11), r"table of a DistanceBias has shape \(11,\)"),
        (torch.zeros(4, 11), r"table of a DistanceBias has shape \(4, 11\)"),
        (torch.zeros(3, 3, 11), r"table of a DistanceBias has shape \(3, 3, 11\)"),
        (torch.zeros(1, 2, 3, 11), r"table of a DistanceBias has shape \(1, 2, 3, 11\)"),
        (torch.zeros(()), r"table of a DistanceBias has shape \(\)"),
        ([[0.0] * 11] * 3, r"table of a DistanceBias must be a torch\.Tensor, got list"),
        (torch.zeros(3, 11, dtype=torch.long), "bias must be floating point"),
    ],
)
def test_a_table_that_does_not_fit(table, message):
    (q, k, v), _ = draw()
    with pytest.raises(ValueError, match=message):
        attention(q, k, v, bias=DistanceBias(table))


@pytest.mark.parametrize(("Tq", "Tk"), [(0, 4), (0, 1), (1, 0)])
def test_without_queries_or_keys(Tq, Tk):
    (q, k, v), table = draw(Tq, Tk)
    assert attention(q, k, v, bias=DistanceBias(table)).shape == q.shape
    explain(q, k, v, bias=DistanceBias(table))


def test_explain_takes_one():
    (q, k, v), table = draw()
    told = explain(q, k, v, bias=DistanceBias(table), bias_masks=False)
    assert told.path == "reference"
    assert any("CUDA GPU" in words for words in told.faster)
    wide = torch.randn(2, 5, 3, 64)
    bias = DistanceBias(torch.randn(3, 9))  # no kernel for large heads knows these: by pair there
    assert any("CUDA GPU" in words for words in explain(wide, wide, wide, bias=bias).faster)


def count_spreading(monkeypatch) -> list[int]:
    """Return a list that grows by an entry whenever distances are spread over the pairs."""
    spread, times = DistanceBias.for_pairs, []
    monkeypatch.setattr(
        DistanceBias, "for_pairs", lambda bias, keys: (times.append(keys), spread(bias, keys))[1]
    )
    return times


@pytest.mark.parametrize(("Tq", "D"), [(5, 64), (1, 4), (5, 4)])
def test_explain_spreads_nothing_over_pairs(Tq, D, monkeypatch):
    (q, k, v), table = draw(Tq, D=D)
    times = count_spreading(monkeypatch)
    explain(q, k, v, bias=DistanceBias(table.requires_grad_()))
    assert not times


def test_what_no_kernel_takes_is_spread_once(monkeypatch):
    (q, k, v), table = draw(D=64)
    times = count_spreading(monkeypatch)
    monkeypatch.setattr(api, "wants_kernel", lambda backend, q: True)  # as on a GPU
    monkeypatch.setattr(dispatch, "say_once", lambda reason: None)
    attention(q, k, v, bias=DistanceBias(table))
    assert len(times) == 1

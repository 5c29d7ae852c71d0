"""`hyla bench small-attention` with einsums in the kernel's place: what it checks."""

import pytest
import torch

from hyla.benchmarks import small_attention
from hyla.benchmarks.small_attention import Shape, einsum, measure


@pytest.mark.usefixtures("on_the_cpu")
def test_a_wrong_result_is_not_timed_and_the_rest_is(monkeypatch):
    def fused(q, k, v, bias=None):
        return einsum(q, k, v, bias) if bias is not None else 2 * einsum(q, k, v)

    shapes = [Shape("wrong", 1, 2, 6, 4, 2, biased=False), Shape("right", 1, 2, 6, 4, 2)]
    monkeypatch.setattr(small_attention, "SHAPES", shapes)
    monkeypatch.setattr(small_attention, "DTYPES", {"float32": torch.float32})
    monkeypatch.setattr(small_attention, "fused", fused)
    monkeypatch.setattr(small_attention, "time_both", lambda function, leaves: (2.0, 6.0))
    wrong, *right = measure(torch.device("cuda"), 1.0)
    assert wrong["error"].startswith("RuntimeError: wrong torch.float32: output is off by")
    assert (wrong["name"], wrong["dtype"]) == ("wrong", "float32")
    assert [(row["name"], row["pass"], row["fused_us"]) for row in right] == [
        ("right", "forward", 2.0),
        ("right", "fwd+bwd", 6.0),
    ]

"""Gradients against finite differences, and torch.func over the functional form."""

import pytest
import torch

from attention_inputs import FAMILY, operands
from hyla.attention import attention

every_preset = pytest.mark.parametrize("name", FAMILY)


@every_preset
def test_gradcheck_with_mask_and_bias(name):
    q, k, v, options = operands(
        name,
        batch=1,
        queries=2,
        keys=3,
        heads=2,
        size=2,
        value_size=2,
        dtype=torch.float64,
        requires_grad=True,
    )
    bias = torch.randn(1, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    weight = options.pop("value_weight", None)
    inputs = (q, k, v, bias) if weight is None else (q, k, v, bias, weight)

    def outputs(q, k, v, bias, weight=None):
        return attention(
            q, k, v, bias=bias, mask=mask, value_weight=weight, return_code=True, **options
        )

    assert torch.autograd.gradcheck(outputs, inputs)


def test_gradgradcheck_of_hyla():
    spec = "hyla"
    q, k, v, _ = operands(
        spec, batch=1, queries=1, keys=2, size=2, value_size=2, dtype=torch.float64,
        requires_grad=True,
    )  # fmt: skip
    assert torch.autograd.gradgradcheck(lambda *x: attention(*x, attention=spec), (q, k, v))


@every_preset
def test_vmap_over_a_population_equals_a_loop(name):
    members = [operands(name) for _ in range(3)]
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    weights = [options.pop("value_weight", None) for *_, options in members]
    q, k, v = (torch.stack(x) for x in zip(*(m[:3] for m in members), strict=True))
    weight = None if weights[0] is None else torch.stack(weights)

    def call(q, k, v, weight):
        return attention(q, k, v, attention=name, mask=mask, value_weight=weight, return_code=True)

    in_dims = (0, 0, 0, None if weight is None else 0)
    out, code = torch.func.vmap(call, in_dims=in_dims)(q, k, v, weight)
    for i in range(3):
        want_out, want_code = call(q[i], k[i], v[i], weights[i])
        torch.testing.assert_close(out[i], want_out)
        torch.testing.assert_close(code[i], want_code)


@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
@every_preset
def test_vmapped_gradients_equal_backward(name, chunked, monkeypatch):
    if chunked:
        monkeypatch.setattr("hyla.attention.paths.chunking.MAX_PAIRWISE_ELEMENTS", 1)
    _, _, _, options = operands(name)
    q, k, v = torch.randn(3, 3, 2, 5, 3, 4)

    def loss(q, k, v):
        return attention(q, k, v, causal=True, **options).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    for i in range(3):
        leaves = [x[i].clone().requires_grad_() for x in (q, k, v)]
        wanted = torch.autograd.grad(loss(*leaves), leaves)
        for got, want in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(got[i], want)

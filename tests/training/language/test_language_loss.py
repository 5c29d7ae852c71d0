"""The chunked cross-entropy is PyTorch's, gradients included."""

import pytest
import torch
import torch.nn.functional as F

from hyla.training.language.loss import cross_entropies, mean_cross_entropy


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
@pytest.mark.parametrize("with_bias", [True, False])
def test_it_is_pytorchs(rows, with_bias):
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True) if with_bias else None
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    targets = torch.randint(11, (7,))
    expected = F.cross_entropy(F.linear(hidden, weight, bias), targets)
    got = mean_cross_entropy(hidden, weight, bias, targets, rows=rows)
    torch.testing.assert_close(got, expected.float())
    wanted = torch.autograd.grad(3 * expected, leaves)
    for gradient, want in zip(torch.autograd.grad(3 * got, leaves), wanted, strict=True):
        torch.testing.assert_close(gradient, want, rtol=1e-5, atol=1e-7)
    each = cross_entropies(hidden, weight, bias, targets, rows=rows)
    logits = F.linear(hidden, weight, bias)
    torch.testing.assert_close(each, F.cross_entropy(logits, targets, reduction="none").float())


def test_large_logits_do_not_overflow():
    hidden = torch.full((2, 1), 1e4, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss = mean_cross_entropy(hidden, weight, None, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(1e4)
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler
def test_compiled_it_is_the_same():
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 5, requires_grad=True), torch.randn(11, 5, requires_grad=True)
    targets = torch.randint(11, (9,))
    results = []
    for compile in (False, True):
        loss = mean_cross_entropy(hidden, weight, None, targets, rows=4, compile=compile)
        results.append((loss, *torch.autograd.grad(loss, (hidden, weight))))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(plain, compiled)

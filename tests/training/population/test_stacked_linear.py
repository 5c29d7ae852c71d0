"""Weight gradients whose sum is cut into parts: the numbers of `nn.Linear`, in any company."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import Population, stacked_linear
from hyla.training.population.stacked_linear import (
    StackedLinear,
    parts_of_sum,
    weight_gradient,
    with_stacked_linear_layers,
)


@pytest.fixture
def tiny_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut sums of a few tokens as well."""
    monkeypatch.setattr(stacked_linear, "SHORTEST_SUM", 4)


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("members", [1, 3])
def test_parts_add_up_to_the_gradient(members: int, parts: int):
    x, upstream = torch.randn(members, 64, 5), torch.randn(members, 64, 7)
    expected = torch.einsum("pno,pni->poi", upstream.double(), x.double())
    found = weight_gradient(x, upstream, parts)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_sums_are_cut_only_where_tiles_are_missing():
    sraven = {"tokens": 128 * 36, "rows": 64, "columns": 128}
    assert parts_of_sum(36, **sraven) == 4
    assert parts_of_sum(12, **sraven) == parts_of_sum(1, **sraven) == 8  # of 576 tokens each
    assert parts_of_sum(12, tokens=4608, rows=1024, columns=1024) == 1
    assert parts_of_sum(12, tokens=4609, rows=64, columns=128) == 1  # divides into no equal parts
    assert parts_of_sum(12, tokens=512, rows=64, columns=128) == 1


@pytest.mark.usefixtures("tiny_sums")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_has_the_gradients_of_the_plain_one(members: int, bias: bool, compiled: bool):
    plain, stacked = nn.Linear(6, 5, bias=bias), nn.Linear(6, 5, bias=bias)
    with_stacked_linear_layers(stacked)
    assert type(stacked) is StackedLinear
    leaves = [torch.randn(members, 8, 4, 6), torch.randn(members, 5, 6), torch.randn(members, 5)]
    leaves = [leaf.requires_grad_() for leaf in leaves[: 3 if bias else 2]]

    def losses(layer: nn.Module):
        def loss(x, *parameters):
            named: dict[str, torch.Tensor] = dict(zip(("weight", "bias"), parameters, strict=False))
            return functional_call(layer, named, (x,)).tanh().square().sum()

        return lambda *given: torch.vmap(loss)(*given)

    run = losses(stacked)
    if compiled:
        torch.compiler.reset()
        run = torch.compile(run, fullgraph=True, dynamic=False, backend="aot_eager")
    expected, found = losses(plain)(*leaves), run(*leaves)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), leaves), torch.autograd.grad(expected.sum(), leaves)
    )


@pytest.mark.usefixtures("tiny_sums")
def test_without_vmap_under_autocast_and_under_torch_func_grad():
    plain, stacked = nn.Linear(6, 5), nn.Linear(6, 5)
    stacked.load_state_dict(plain.state_dict())
    with_stacked_linear_layers(stacked)
    x = torch.randn(8, 4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, found = plain(x), stacked(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=5e-3)  # rounded before the bias too
    gradients = [
        torch.autograd.grad(y.sum(), layer.weight)[0]
        for y, layer in ((expected, plain), (found, stacked))
    ]
    torch.testing.assert_close(*gradients, rtol=2e-2, atol=1e-2)

    def loss(weight: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return functional_call(layer, {"weight": weight}, (x,)).square().sum()

    torch.testing.assert_close(
        torch.func.grad(loss)(plain.weight, stacked), torch.func.grad(loss)(plain.weight, plain)
    )


def _population(seeds: list[int], *, stacked: bool, compile: bool = False) -> Population:
    changes = {"members": {"seed": seeds}}
    config = config_from_tree(merge(load_preset("sraven", "smoke"), changes))
    population = Population(
        config.build_task(),
        config.model,
        config.members,
        total_steps=config.steps,
        batch_size=config.batch_size,
        compile=compile,
    )
    if stacked:
        with_stacked_linear_layers(population._model)
    return population


@pytest.mark.usefixtures("tiny_sums")
@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_population_trains_as_with_plain_layers(compile: bool):
    torch.compiler.reset()
    several = _population([0, 1, 2], stacked=True, compile=compile)
    plain = _population([0, 1, 2], stacked=False)
    alone = _population([1], stacked=True)
    losses = []
    for population in (several, plain, alone):
        population.train(10)
        losses.append(population.mean_losses())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses[0][1:2], losses[2], rtol=1e-4, atol=1e-5)

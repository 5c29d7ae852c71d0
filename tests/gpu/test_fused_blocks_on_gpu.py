"""Fused blocks on a real GPU, at the paper's sizes: right numbers, alone and captured."""

import pytest
import torch

from block_checks import (
    SRAVEN,
    Sizes,
    check,
    drawn,
    fused_block,
    fused_finish,
    fused_project,
    plain_block,
    plain_finish,
    plain_project,
)
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import Population
from hyla.training.population.blocks.kernel import why_not_here

REASON = why_not_here(torch.device("cuda")) if torch.cuda.is_available() else "needs a GPU"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.filterwarnings("ignore:TensorFloat32.*:UserWarning"),  # what the compiler advises
]
FUZZY = Sizes(embed=128, qk=16, heads=16, hidden=256)
# tf32 keeps ten bits of a factor, bfloat16 seven.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 2e-2}


# Alone, one odd number, one model, and so many that blocks have several tiles and some two members.
@pytest.mark.parametrize(("members", "tokens"), [(1, 1), (3, 75), (1, 4608), (5, 4608)])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["tf32", "bf16"])
@pytest.mark.parametrize("sizes", [SRAVEN, FUZZY], ids=["sraven", "fuzzy"])
def test_both_parts_have_the_plain_numbers(
    sizes: Sizes, dtype: torch.dtype, members: int, tokens: int
):
    drawn_ones = (drawn([(tokens, w)], members, "cuda")[0] for w in (sizes.embed, sizes.heads))
    x, attended = (y.detach().to(dtype).requires_grad_() for y in drawn_ones)
    project, finish = (drawn(of, members, "cuda") for of in (sizes.project, sizes.finish))
    check(fused_project, plain_project, [x, *project], TOLERANCE[dtype])
    check(fused_finish, plain_finish, [x, attended, *finish], TOLERANCE[dtype])
    check(fused_block, plain_block, [x, *project, *finish], TOLERANCE[dtype])


def test_the_same_numbers_in_every_run():
    (x,) = drawn([(4608, SRAVEN.embed)], 5, "cuda")
    inputs = [x, *drawn(SRAVEN.project, 5, "cuda"), *drawn(SRAVEN.finish, 5, "cuda")]
    first, second = (
        torch.autograd.grad(fused_block(*inputs)[0].square().sum(), inputs) for _ in range(2)
    )
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-2), ("bf16", 5e-2)])
@pytest.mark.parametrize("task", ["sraven", "fuzzy"])
def test_the_captured_step_trains_as_with_plain_blocks(task: str, precision: str, tolerance: float):
    settings = config_from_tree(merge(load_preset(task, "paper"), {"members": {"seed": [0, 1]}}))
    losses = []
    for fused in (True, False):
        torch.compiler.reset()
        population = Population(
            settings.build_task(),
            settings.model,
            settings.members,
            total_steps=settings.steps,
            batch_size=settings.batch_size,
            device="cuda",
            precision=precision,
            fused_blocks=fused,
        )
        population.train(10)
        losses.append(population.mean_losses())
    torch.testing.assert_close(*losses, rtol=tolerance, atol=0)

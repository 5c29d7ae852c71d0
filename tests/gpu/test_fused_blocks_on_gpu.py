"""Fused blocks on a real GPU, at the paper's sizes: right numbers, alone and captured."""

import pytest
import torch

from block_checks import (
    Sizes,
    check,
    drawn,
    fused_finish,
    fused_project,
    plain_finish,
    plain_project,
)
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import Population
from hyla.training.precision import matmul_precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32.*:UserWarning"),  # what the compiler advises
]
SRAVEN = Sizes(embed=128, qk=64, heads=64, hidden=256)
FUZZY = Sizes(embed=128, qk=16, heads=16, hidden=256)
# tf32 keeps ten bits of a factor, bfloat16 seven.
TOLERANCE = {"float32": 1e-5, "tf32": 3e-3, "bf16": 3e-2}


@pytest.mark.parametrize("precision", list(TOLERANCE))
@pytest.mark.parametrize("sizes", [SRAVEN, FUZZY], ids=["sraven", "fuzzy"])
@pytest.mark.parametrize("tokens", [1, 1000])
def test_both_parts_have_the_plain_numbers(tokens: int, sizes: Sizes, precision: str):
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def streams(*widths: int) -> list[torch.Tensor]:
        drawn_ones = (drawn([(tokens, width)], 3, "cuda")[0] for width in widths)
        return [x.detach().to(dtype).requires_grad_() for x in drawn_ones]

    tolerance = TOLERANCE[precision]
    with matmul_precision(precision):
        inputs = [*streams(sizes.embed), *drawn(sizes.project, 3, "cuda")]
        check(fused_project, plain_project, inputs, tolerance)
        inputs = [*streams(sizes.embed, sizes.heads), *drawn(sizes.finish, 3, "cuda")]
        check(fused_finish, plain_finish, inputs, tolerance)


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

"""Fused blocks, their kernels interpreted on the CPU: the numbers of plain ones, in any company."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are written in Triton")

from block_checks import (
    SMALL,
    check,
    drawn,
    fused_finish,
    fused_project,
    plain_finish,
    plain_project,
)
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import Population
from hyla.training.population.blocks import why_not_fused, with_fused_blocks

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU nothing is interpreted (tests/conftest.py)"
)


@pytest.mark.parametrize("tokens", [1, 75])  # alone, and in several parts with a rest
@pytest.mark.parametrize("members", [1, 3])
def test_projections_have_the_plain_numbers(members: int, tokens: int):
    inputs = [*drawn([(tokens, SMALL.embed)], members), *drawn(SMALL.project, members)]
    check(fused_project, plain_project, inputs, 1e-5)


@pytest.mark.parametrize("tokens", [1, 75])
@pytest.mark.parametrize("members", [1, 3])
def test_the_rest_of_a_block_has_the_plain_numbers(members: int, tokens: int):
    streams = [*drawn([(tokens, SMALL.embed)], members), *drawn([(tokens, SMALL.heads)], members)]
    check(fused_finish, plain_finish, [*streams, *drawn(SMALL.finish, members)], 1e-5)


def test_parameters_that_lie_apart_are_gathered():
    apart = [parameter.detach().clone().requires_grad_() for parameter in drawn(SMALL.project, 2)]
    check(fused_project, plain_project, [*drawn([(5, SMALL.embed)], 2), *apart], 1e-5)


def test_tokens_in_half_precision_beside_parameters_in_float32():
    """As under autocast; products in bfloat16 are a GPU's (tests/gpu)."""
    tokens = [x.detach().bfloat16().requires_grad_() for x in drawn([(40, SMALL.embed)], 2)]
    check(fused_project, plain_project, [*tokens, *drawn(SMALL.project, 2)], 2e-2)
    heads = [x.detach().bfloat16().requires_grad_() for x in drawn([(40, SMALL.heads)], 2)]
    check(fused_finish, plain_finish, [*tokens, *heads, *drawn(SMALL.finish, 2)], 2e-2)


def population(task: str, seeds: list[int], **options) -> Population:
    changes = {
        "members": {"seed": seeds},
        "model": {"num_layers": 2, "qk_dim": SMALL.qk, "v_dim": SMALL.heads},
        "batch_size": 2,
    }
    config = config_from_tree(merge(load_preset(task, "smoke"), changes))
    return Population(
        config.build_task(),
        config.model,
        config.members,
        total_steps=config.steps,
        batch_size=config.batch_size,
        **options,
    )


@pytest.mark.parametrize("task", ["sraven", "fuzzy", "recall"])  # T5, no and rotary positions
def test_a_population_trains_as_with_plain_blocks(task: str):
    fused, plain = population(task, [0, 1], fused_blocks=True), population(task, [0, 1])
    alone = population(task, [1], fused_blocks=True)
    losses = []
    for one in (fused, plain, alone):
        one.train(3)
        losses.append(one.mean_losses())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses[0][1:], losses[2], rtol=1e-5, atol=1e-6)


def test_compilers_see_one_graph():
    def compiled(one: Population) -> Population:
        one._losses = torch.compile(one._population_losses, fullgraph=True, backend="aot_eager")
        return one

    torch.compiler.reset()
    losses = []
    for one in (
        compiled(population("sraven", [0, 1], fused_blocks=True)),
        population("sraven", [0, 1]),
    ):
        one.train(2)
        losses.append(one.mean_losses())
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)


def test_branches_are_measured_and_codes_read_on_the_plain_path():
    fused, plain = population("sraven", [0], fused_blocks=True), population("sraven", [0])
    assert fused.branch_scales(2) == plain.branch_scales(2)
    inputs = torch.randn(2, 18, 4)
    model = fused.member_model(0)
    with_fused_blocks(model)
    torch.testing.assert_close(
        model(inputs, details=True).codes, plain.member_model(0)(inputs, details=True).codes
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"feed_forward": "moe"}, "'moe'"),
        ({"embed_dim": 24}, "powers of two"),
        ({"width_factor": 16}, "in registers"),
    ],
)
def test_what_does_not_fit_says_so(changes: dict, reason: str):
    config = config_from_tree(merge(load_preset("sraven", "smoke"), {"model": changes}))
    one = Population(config.build_task(), config.model, config.members, total_steps=1)
    assert reason in str(why_not_fused(one._model))
    with pytest.raises(ValueError, match="cannot be fused"):
        with_fused_blocks(one._model)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hyla.training.population.blocks import kernels, launch

SIZES = {"E": 128, "QK": 64, "V": 64, "M": 256, "TURNS": 3, "PRECISION": "tf32"}
NUMBERS = {"tokens": "i32", "stride": "i32", "total": "i32", "eps": "fp32"}
for name, tiles in (
    ("project_forward", launch.PROJECT_FORWARD),
    ("project_backward", launch.PROJECT_BACKWARD),
    ("finish_forward", launch.FINISH_FORWARD),
    ("finish_backward_tokens", launch.FINISH_TOKENS),
    ("finish_backward_weights", launch.FINISH_WEIGHTS),
):
    kernel = getattr(kernels, name)
    for capability in (80, 90):
        for half in (False, True):
            fixed = SIZES | {"ROWS": tiles.rows, "CHUNK": tiles.chunk, "BF16": half}
            fixed = {key: value for key, value in fixed.items() if key in kernel.arg_names}
            types = {arg: NUMBERS.get(arg, "*fp32") for arg in kernel.arg_names}
            source = ASTSource(
                kernel,
                types | dict.fromkeys(fixed, "constexpr"),
                {(kernel.arg_names.index(key),): value for key, value in fixed.items()},
            )
            options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
            built = triton.compile(source, GPUTarget("cuda", capability, 32), options)
            assert ("wgmma" if capability == 90 else "mma.sync") in built.asm["ptx"], name
            assert built.metadata.shared <= {80: 163, 90: 227}[capability] * 1024, name
"""


def test_kernels_compile_for_ampere_and_hopper_on_tensor_cores_within_shared_memory():
    """What the interpreter lets pass, such as a variable that changes its type in a loop."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

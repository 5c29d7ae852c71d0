"""Fused blocks, their kernels built for the CPU: the numbers of plain ones, in any company."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from block_checks import (
    SMALL,
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
from hyla.attention.kernels.formula import read_sources
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import Population
from hyla.training.population.blocks import gradients, kernel, with_fused_blocks
from hyla.training.population.blocks.block import why_not_fused
from kernel_host import HostBuilds, kept_builds, needs_host_build, on_the_host

pytestmark = [
    needs_host_build,
    pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it is tests/gpu that tests"),
]
HERE = Path(__file__).parent
MIXED = Sizes(embed=128, qk=16, heads=32, hidden=128)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def builds() -> HostBuilds:
    hopper = read_sources("hopper.cuh", package="hyla.training.population.blocks")
    return HostBuilds(kept_builds(), {hopper: HERE / "hopper_host.h"})


@pytest.fixture(autouse=True)
def host(builds: HostBuilds, monkeypatch: pytest.MonkeyPatch):
    on_the_host(monkeypatch, builds, kernel)


# Alone; with a rest in every tile; more than one pass of a block, so that weights come round again.
@pytest.mark.parametrize(("members", "tokens"), [(1, 1), (3, 75), (2, 401)])
@pytest.mark.parametrize("sizes", [SMALL, SRAVEN, MIXED], ids=["small", "sraven", "mixed"])
def test_both_parts_have_the_plain_numbers(sizes: Sizes, members: int, tokens: int):
    x, attended = (drawn([(tokens, w)], members)[0] for w in (sizes.embed, sizes.heads))
    check(fused_project, plain_project, [x, *drawn(sizes.project, members)], 2e-6)
    check(fused_finish, plain_finish, [x, attended, *drawn(sizes.finish, members)], 2e-6)


def test_sums_are_shared_out_where_members_are_few(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gradients, "multiprocessors", lambda device: 132)
    test_both_parts_have_the_plain_numbers(SRAVEN, members=1, tokens=401)


def test_one_sum_of_both_gradients_reaches_the_stream():
    parameters = [*drawn(SMALL.project, 2), *drawn(SMALL.finish, 2)]
    check(fused_block, plain_block, [*drawn([(70, SMALL.embed)], 2), *parameters], 2e-6)


def test_parameters_that_lie_apart_are_gathered():
    shapes = [*SMALL.project, *SMALL.finish]
    apart = [parameter.detach().clone().requires_grad_() for parameter in drawn(shapes, 2)]
    check(fused_block, plain_block, [*drawn([(5, SMALL.embed)], 2), *apart], 2e-6)


@pytest.mark.parametrize("sizes", [SMALL, SRAVEN], ids=["small", "sraven"])
def test_tokens_in_half_precision_beside_parameters_in_float32(sizes: Sizes):
    """As under autocast."""
    drawn_ones = (drawn([(150, width)], 2)[0] for width in (sizes.embed, sizes.heads))
    x, attended = (y.detach().bfloat16().requires_grad_() for y in drawn_ones)
    check(fused_project, plain_project, [x, *drawn(sizes.project, 2)], 1e-2)
    check(fused_finish, plain_finish, [x, attended, *drawn(sizes.finish, 2)], 1e-2)


def population(task: str, seeds: list[int], **options) -> Population:
    shape = {"embed_dim": SMALL.embed, "mlp_dim": SMALL.hidden}
    shape |= {"qk_dim": SMALL.qk, "v_dim": SMALL.heads, "num_layers": 2}
    changes = {"members": {"seed": seeds}, "model": shape, "batch_size": 2}
    config = config_from_tree(merge(load_preset(task, "smoke"), changes))
    return Population(
        config.build_task(),
        config.model,
        config.members,
        total_steps=config.steps,
        batch_size=config.batch_size,
        precision="tf32",
        **options,
    )


@pytest.mark.parametrize("task", ["sraven", "fuzzy", "recall"])  # T5, no and rotary positions
def test_a_population_trains_as_with_plain_blocks(task: str):
    fused, plain = population(task, [0, 1], fused_blocks=None), population(task, [0, 1])
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
    with_fused_blocks(model, CPU, "tf32")
    torch.testing.assert_close(
        model(inputs, details=True).codes, plain.member_model(0)(inputs, details=True).codes
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"feed_forward": "moe"}, "'moe'"),
        ({"embed_dim": 64}, "embed_dim is 64"),
        ({"width_factor": 2}, "embed_dim is 256"),
        ({"qk_dim": 128}, "take 16 or 32 or 64"),
        ({"mlp_dim": 512}, "mlp_dim is 512"),
        ({"num_key_heads": 4}, "heads share keys"),
    ],
)
def test_what_does_not_fit_says_so(changes: dict, reason: str):
    config = config_from_tree(merge(load_preset("sraven", "paper"), {"model": changes}))
    one = Population(
        *(config.build_task(), config.model, config.members),
        total_steps=1,
        precision="tf32",
        fused_blocks=None,
    )
    assert reason in str(one.why_plain)
    with pytest.raises(ValueError, match="cannot be fused"):
        with_fused_blocks(one._model, CPU, "tf32")


def test_where_nobody_expects_them_nothing_is_said(monkeypatch: pytest.MonkeyPatch):
    config = config_from_tree(load_preset("sraven", "paper"))
    assert "'float32'" in str(why_not_fused(config.model, CPU, "float32"))
    monkeypatch.setattr(kernel, "DEVICES", ("cuda",))
    assert "for a GPU" in str(why_not_fused(config.model, CPU, "bf16"))
    one = population("sraven", [0], fused_blocks=None)
    assert one.why_plain is None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's compiler, nvcc")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["tf32", "bf16"])
def test_kernels_compile_for_hopper_and_fit_into_registers(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """What the host build lets pass: registers, and products that would wait for one another."""
    compiled = []

    class Kernel:
        def launch(self, *_):
            """Do nothing: the numbers are no matter here."""

    def load_kernel(source, name, macros, device):
        file = tmp_path / f"{name}{len(compiled)}.cu"
        file.write_text(source, encoding="utf-8")
        command = ["nvcc", "-std=c++17", "-cubin", "-arch=sm_90a", "-Xptxas", "-v", "-o"]
        command += [str(file.with_suffix(".cubin")), str(file)]
        command += [f"-D{key}={value}" for key, value in macros.items()]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert "Potential Performance Loss" not in ran.stderr, ran.stderr
        spilled = re.findall(r"(\d+) bytes spill stores", ran.stderr)
        compiled.append((name, sum(map(int, spilled))))
        return Kernel()

    monkeypatch.setattr(kernel, "load_kernel", load_kernel)
    x = drawn([(64, SRAVEN.embed)], 1)[0].detach().to(dtype).requires_grad_()
    parameters = [*drawn(SRAVEN.project, 1), *drawn(SRAVEN.finish, 1)]
    (y,) = fused_block(x, *parameters)
    y.sum().backward()
    assert len(compiled) == 9
    assert all(spilled <= 8 for _, spilled in compiled), compiled  # bytes

"""What goes wrong between the threads of fused blocks, without a GPU: `hazards.py` looks."""

from pathlib import Path

import pytest
import torch

from block_checks import SMALL, SRAVEN, drawn, fused_finish, fused_project
from hazards import CheckedBuilds
from hyla.attention.kernels.formula import read_sources
from hyla.training.population.blocks import kernel
from kernel_host import kept_builds, needs_host_build, on_the_host

pytestmark = [
    needs_host_build,
    pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it is tests/gpu that tests"),
]


@pytest.fixture(scope="module")
def builds() -> CheckedBuilds:
    hopper = read_sources("hopper.cuh", package="hyla.training.population.blocks")
    host = Path(__file__).parent / "hopper_host.h"
    return CheckedBuilds(kept_builds(), {hopper: host})


@pytest.fixture(autouse=True)
def host(builds: CheckedBuilds, monkeypatch: pytest.MonkeyPatch):
    on_the_host(monkeypatch, builds, kernel)


@pytest.mark.parametrize(
    ("sizes", "members", "tokens", "dtype"),
    [
        (SMALL, 2, 20, torch.float32),
        pytest.param(SMALL, 2, 150, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(SRAVEN, 2, 401, torch.float32, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_pass_in_any_order(sizes, members, tokens, dtype, builds):
    x, attended = (
        drawn([(tokens, width)], members)[0].detach().to(dtype).requires_grad_()
        for width in (sizes.embed, sizes.heads)
    )
    for part, given in (
        (fused_project, [x, *drawn(sizes.project, members)]),
        (fused_finish, [x, attended, *drawn(sizes.finish, members)]),
    ):
        results = []
        for builds.order in (0, 1):
            outputs = part(*given)
            upstream = [torch.ones_like(y) for y in outputs]
            results.append([*outputs, *torch.autograd.grad(outputs, given, upstream)])
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_tiles_that_are_not_published_are_missed(builds, monkeypatch):
    def without(source, name, macros, device):
        macros = {**macros, "UNPUBLISHED": 1}  # another kernel than the one that does
        return builds.load_kernel(source.replace(" publish_to_async();", ""), name, macros, device)

    monkeypatch.setattr(kernel, "load_kernel", without)
    x, *parameters = [*drawn([(5, SMALL.embed)], 1), *drawn(SMALL.project, 1)]
    outputs = fused_project(x, *parameters)
    with pytest.raises(AssertionError, match="not published"):
        torch.autograd.grad(outputs, x, [torch.ones_like(y) for y in outputs])

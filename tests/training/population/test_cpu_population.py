"""Long training on a CPU takes the kernel for small heads, where it pays and can be had."""

import pytest
import torch

from golden_files import relative_error
from hyla.attention.kernels.cpu import compiler, small_head
from hyla.nn import MultiHeadAttention
from hyla.training import Population
from kernel_host import kept_builds
from tiny_runs import different_members, tiny_population

LONG = 1000

pytestmark = pytest.mark.skipif(
    compiler.why_unavailable() is not None, reason="the kernel on a CPU needs a C++ compiler"
)


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept_builds()))
    directions = []

    def noted(direction, *rest, launch=small_head._launch):
        directions.append(direction)
        launch(direction, *rest)

    monkeypatch.setattr(small_head, "_launch", noted)
    return directions


def backends(population: Population) -> set[str]:
    parts = population._model.modules()
    return {part.backend for part in parts if isinstance(part, MultiHeadAttention)}


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("sraven", {"attention": "hyla.expected2"}),
        ("fuzzy", {"attention": "hyla_residual.rms4", "attention_dropout": 0.2}),
        ("fuzzy", {"attention": "hyla", "num_key_heads": 1, "positions": "rotary"}),
    ],
)
def test_it_trains_as_the_equations_do(task, model, launches):
    losses = []
    for backend in ("auto", "reference"):
        population = tiny_population(
            task, different_members(3), model=model | {"backend": backend}, total_steps=LONG
        )
        population.train(8)  # until rounding has grown
        losses.append(population.mean_losses())
    assert relative_error(*losses) < 1e-4
    assert {"forward", "backward"} == set(launches)


@pytest.mark.parametrize(
    ("model", "steps"),
    [
        ({"attention": "hyla"}, LONG - 1),
        ({"attention": "softmax"}, LONG),
        ({"attention": "hyla_deep"}, LONG),
        ({"attention": "hyla", "qk_dim": 40, "v_dim": 40}, LONG),
        ({"attention": "hyla", "backend": "reference"}, LONG),
    ],
    ids=["short", "linear-network", "deep", "large-heads", "asked-for"],
)
def test_it_is_left_where_it_does_not_pay_or_cannot_be_had(model, steps, launches):
    population = tiny_population("fuzzy", different_members(2), model=model, total_steps=steps)
    population.train(1)
    assert backends(population) == {model.get("backend", "auto")}
    assert launches == []


def test_it_is_left_without_a_compiler(launches, monkeypatch):
    monkeypatch.setattr(compiler, "_why_unavailable", lambda: "no compiler")
    population = tiny_population(
        "fuzzy", different_members(2), model={"attention": "hyla"}, total_steps=LONG
    )
    population.train(1)
    assert backends(population) == {"auto"}
    assert torch.isfinite(population.mean_losses()).all()

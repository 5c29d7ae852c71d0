"""Long training on a CPU takes the kernel for small heads, where it pays and can be had."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from golden_files import relative_error
from hyla.attention import dispatch
from hyla.attention.kernels.cpu import compiler, small_head
from hyla.nn import MultiHeadAttention
from hyla.training import Population
from kernel_host import forget_libraries, kept_builds
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
        launch(direction, *rest)
        directions.append(direction)

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


def assert_trains_by_the_equations(launches: list[str], **options: Any) -> None:
    options = {"model": {"attention": "hyla"}, "total_steps": LONG} | options
    population = tiny_population("fuzzy", different_members(2), **options)
    population.train(1)
    assert backends(population) == {"auto"}
    assert launches == []
    assert torch.isfinite(population.mean_losses()).all()


@pytest.fixture
def new_process(launches, monkeypatch, tmp_path: Path):
    """Nothing is compiled yet, and nothing said."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(dispatch, "_SAID", set())
    forget_libraries()
    yield
    forget_libraries()


def test_it_is_left_without_a_compiler(new_process, launches, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert_trains_by_the_equations(launches)


def refuse(what: str) -> Callable[..., None]:
    """Return a compiler that refuses sources with `what` in them."""

    def refusing(source, *rest, compile_one=compiler._compile):
        if what in source:
            raise compiler.CompilerError("no such vectors")
        compile_one(source, *rest)

    return refusing


@pytest.mark.parametrize("part", ["void probe", "struct Work"])
def test_a_compiler_that_fails_is_said_once(part, new_process, launches, monkeypatch):
    monkeypatch.setattr(compiler, "_compile", refuse(part))
    with pytest.warns(UserWarning, match="reference path, not a fused kernel: no such vectors"):
        assert_trains_by_the_equations(launches)
    assert_trains_by_the_equations(launches)  # without a warning, which would be an error


def test_nothing_is_compiled_to_learn_that_it_cannot_be_had(launches, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: lambda *_: pytest.fail("compiled"))
    population = tiny_population(
        "fuzzy",
        different_members(2),
        model={"attention": "hyla", "qk_dim": 40, "v_dim": 40},
        total_steps=LONG,
        compile=True,
    )
    assert backends(population) == {"auto"}

"""Imports point one way: attention ← nn ← training ← results ← lab ← cli, and what branches off."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "hyla"

# What each part may import, beside itself and the private helpers at the top (hyla._*).
ALLOWED = {
    "attention": set(),
    "nn": {"attention"},
    "doctor": {"attention", "nn"},
    "tasks": set(),
    "training": {"attention", "nn", "tasks"},
    "latents": {"attention", "nn", "tasks"},
    "integrations": {"attention", "nn", "tasks", "latents"},
    "results": {"attention", "nn", "tasks", "training"},
    "figures": set(),
    "lab": {
        "attention",
        "nn",
        "tasks",
        "training",
        "latents",
        "integrations",
        "results",
        "figures",
    },
    "explorer": {"attention", "nn", "tasks", "training", "latents", "results"},
    "benchmarks": {"attention", "nn", "tasks", "training", "latents", "results", "explorer"},
}
ALLOWED["commands"] = set(ALLOWED)
ALLOWED["cli"] = set(ALLOWED)


def part_of(module: str) -> str:
    """The part of hyla that a dotted module belongs to: 'hyla.nn.cache' is of 'nn'."""
    return [*module.split("."), ""][1]


def imported_modules(source: str, package: str) -> set[str]:
    """Every module of hyla that `source`, a module of `package`, imports, anywhere in it."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            # `from hyla import nn` imports a part as well.
            modules |= {f"hyla.{x.name}" for x in node.names} if base == "hyla" else {base}
    return {module for module in modules if module == "hyla" or module.startswith("hyla.")}


def back_edges(part: str, source: str, package: str) -> set[str]:
    return {
        module
        for module in imported_modules(source, package)
        if not part_of(module).startswith("_")
        and part_of(module) not in ALLOWED.get(part, set()) | {part}
    }


def files() -> list[Path]:
    """Every module of a part; those at the top whose names begin with _ are nobody's part."""
    return sorted(
        path
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE or not path.name.startswith("_")
    )


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    relative = path.relative_to(SOURCE)
    part = relative.parts[0].removesuffix(".py")
    assert part in ALLOWED, f"{part}: say in this test what it may import"
    package = ".".join(("hyla", *relative.parent.parts))
    wrong = back_edges(part, path.read_text(), package)
    assert not wrong, f"{relative} imports {sorted(wrong)}; {part} may use {sorted(ALLOWED[part])}"


def test_private_helpers_at_the_top_import_no_part():
    for path in SOURCE.glob("_[a-z]*.py"):
        assert not back_edges("", path.read_text(), "hyla"), path.name


def test_the_arrows_have_no_cycle():
    order = list(ALLOWED)
    for part, allowed in ALLOWED.items():
        assert all(order.index(other) < order.index(part) for other in allowed), part


@pytest.mark.parametrize(
    "source",
    [
        "import hyla.nn",
        "from hyla.nn.cache import KeyValueCache",
        "from hyla import nn",
        "from ..nn import cache",
        "def late():\n    import hyla.training",
        "import hyla",
    ],
)
def test_a_back_edge_is_found(source):
    assert back_edges("attention", source, "hyla.attention")


@pytest.mark.parametrize(
    "source",
    [
        "from hyla._errors import nearest",
        "from hyla.attention import attention",
        "from . import cache",
        "from .cache import KeyValueCache",
        "import torch",
    ],
)
def test_an_arrow_that_is_allowed_is_not(source):
    assert not back_edges("nn", source, "hyla.nn")


def told_apart(source: str) -> list[str]:
    """The calls that tell tasks, or their settings, apart by their classes."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("isinstance", "issubclass")
        and any(name in ast.unparse(node.args[1]) for name in ("Sraven", "FuzzyLogic"))
    ]


def test_nobody_but_a_task_knows_its_class():
    assert told_apart("isinstance(task, (Task, Sraven))")
    for path in files():
        if "tasks" not in path.relative_to(SOURCE).parts:
            assert not told_apart(path.read_text()), f"{path}: ask the task, by a property of Task"

"""Imports point one way: attention ← nn ← training ← results ← lab ← cli, and what branches off."""

import ast
from collections.abc import Set
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
    "results": {"attention", "nn", "tasks", "training", "latents"},
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


def top_level_imports(source: str, known: Set[str]) -> set[str]:
    """Which of the known modules are imported as soon as `source` is."""
    nodes = [*ast.parse(source).body]
    modules = set()
    for node in nodes:
        if isinstance(node, ast.Try):
            nodes += [*node.body, *node.orelse]
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # What is taken from a package is one of its modules, or something that it defines.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= names if names <= known else {node.module, *names}
    return modules & known


def module_graph() -> dict[str, set[str]]:
    """Who imports whom."""
    sources = {
        ".".join(("hyla", *path.relative_to(SOURCE).with_suffix("").parts)): path.read_text()
        for path in SOURCE.rglob("*.py")
    }
    sources = {name.removesuffix(".__init__"): source for name, source in sources.items()}
    return {name: top_level_imports(text, sources.keys()) for name, text in sources.items()}


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """A cycle of the graph, as a path that ends where it begins; empty if there is none."""
    finished: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for following in sorted(graph[path[-1]] - finished):
            if following in path:
                return [*path[path.index(following) :], following]
            if found := search([*path, following]):
                return found
        finished.add(path[-1])
        return []

    return next((found for name in graph if (found := search([name]))), [])


def test_modules_have_no_import_cycle():
    assert not cycle_in(module_graph())


def test_an_import_cycle_is_found():
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert not cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()})


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

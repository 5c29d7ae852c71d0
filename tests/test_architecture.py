"""Imports point one way: attention ← nn ← training ← results ← lab ← cli, and what branches off."""

import ast
import graphlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hyla.tasks import task_class, task_names

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

# The rooms in the lab: what each may import of the lab, beside itself. "" is what lies at its top.
ROOMS = {
    "": set(),
    "experiments": {""},
    "plan": {""},
    "latents": {"", "experiments"},
    "report": {"", "experiments"},
    "api": {"", "plan", "report"},
}


MOST_LINES = 400
MOST_MODULES = 15
"""Of a folder, beside its __init__.py."""


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


def room_of(module: str) -> str:
    """The room of the lab that 'hyla.lab.plan.shares' is in: 'plan'; '' for 'hyla.lab.grids'."""
    name = [*module.split("."), "", ""][2]
    return name if name in ROOMS else ""


def wrong_rooms(module: str, source: str) -> set[str]:
    """The modules of the lab that one of it, of this name, may not import."""
    allowed = ROOMS[room_of(module)] | {room_of(module)}
    package = module.rpartition(".")[0]
    imported = {m for m in imported_modules(source, package) if m.startswith("hyla.lab.")}
    return {m for m in imported if room_of(m) not in allowed}


def modules() -> dict[str, str]:
    """The source of every module, by its dotted name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("hyla", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return found


def imported_at_once(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """What is imported as soon as a module is: not by its functions, nor for type checkers."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from imported_at_once(node.body)
            yield from imported_at_once(node.orelse)
        elif isinstance(node, ast.Try | ast.With):
            yield from imported_at_once(node.body)


def cycle(sources: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle, if there is one."""
    graph: dict[str, set[str]] = {}
    for name, source in sources.items():
        needed = set()
        for node in imported_at_once(ast.parse(source).body):
            if isinstance(node, ast.Import):
                needed |= {alias.name for alias in node.names}
            else:  # a module of a package, or something in one
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                needed |= {one if one in sources else str(node.module) for one in below}
        graph[name] = (needed & sources.keys()) - {name}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    relative = path.relative_to(SOURCE)
    part = relative.parts[0].removesuffix(".py")
    assert part in ALLOWED, f"{part}: say in this test what it may import"
    package = ".".join(("hyla", *relative.parent.parts))
    wrong = back_edges(part, path.read_text(), package)
    assert not wrong, f"{relative} imports {sorted(wrong)}; {part} may use {sorted(ALLOWED[part])}"


def test_no_module_and_no_folder_is_too_large_to_know():
    paths = list(SOURCE.rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in paths}
    assert not [path for path, number in lines.items() if number > MOST_LINES]
    folders = Counter(path.parent for path in paths if path.name != "__init__.py")
    assert not [folder for folder, number in folders.items() if number > MOST_MODULES]


def test_private_helpers_at_the_top_import_no_part():
    for path in SOURCE.glob("_[a-z]*.py"):
        assert not back_edges("", path.read_text(), "hyla"), path.name


def test_the_arrows_have_no_cycle():
    order = list(ALLOWED)
    for part, allowed in ALLOWED.items():
        assert all(order.index(other) < order.index(part) for other in allowed), part


def test_no_modules_import_each_other_in_a_circle():
    assert cycle(modules()) == []


@pytest.mark.parametrize("part", ["import hyla.b", "from hyla.b import x", "from hyla import b"])
def test_a_circle_is_found(part: str):
    sources = {"hyla": "", "hyla.a": part, "hyla.b": "if True:\n    from hyla.a import y"}
    assert set(cycle(sources)) == {"hyla.a", "hyla.b"}
    later = "if TYPE_CHECKING:\n    import hyla.a\ndef f():\n    import hyla.a"
    assert cycle(sources | {"hyla.b": later}) == []


def test_the_rooms_of_the_lab_are_kept():
    for name, source in modules().items():
        if name.startswith("hyla.lab."):  # and not the lab itself, which only names what it offers
            wrong = wrong_rooms(name, source)
            assert not wrong, f"{name} imports {sorted(wrong)}"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hyla.lab.report.sections", "from hyla.lab.plan.shares import plan"),
        ("hyla.lab.experiments.sraven.fig3", "import hyla.lab.plan.pipeline"),
        ("hyla.lab.experiments.sraven.fig3", "def late():\n    import hyla.lab.report.pages"),
        ("hyla.lab.plan.sweep", "from hyla.lab.report.pages import write_all"),
        ("hyla.lab.grids", "from hyla.lab.experiments.shared import panels"),
    ],
)
def test_a_wrong_room_is_found(module: str, source: str):
    assert wrong_rooms(module, source)
    assert not wrong_rooms(module, "from hyla.lab.grids import sweep")


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
        and any(task_class(n).__name__ in ast.unparse(node.args[1]) for n in task_names())
    ]


def test_nobody_but_a_task_knows_its_class():
    for name in ("Sraven", "FuzzyLogicConfig", "Recall"):
        assert told_apart(f"isinstance(task, (Task, {name}))")
    for path in files():
        if "tasks" not in path.relative_to(SOURCE).parts:
            assert not told_apart(path.read_text()), f"{path}: ask the task, by a property of Task"

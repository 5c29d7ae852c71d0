"""docs/architecture.md is true: its files, folders and arrows exist, its way never turns back."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_blocks import ROOT
from test_architecture import ALLOWED, SOURCE

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
MOST_HOPS = 20

CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:py|cuh?|js|md|svg|toml|yaml)|[\w./-]+/")
HOP = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
FOLDER = re.compile(r"^\| `([\w/]+)/` \| (.+) \|$", re.MULTILINE)


def missing(page: str) -> list[str]:
    """The files and folders that a page names and that are not there."""
    named = [code for code in CODE.findall(page) if FILE.fullmatch(code)]
    return [name for name in named if not ((SOURCE / name).exists() or (ROOT / name).exists())]


def hops(page: str) -> list[list[tuple[str, str]]]:
    """Of each hop its files, two where one or the other is passed, and what to look at in each."""
    return [
        list(zip(CODE.findall(files), CODE.findall(names), strict=True))
        for _, files, names in HOP.findall(page)
    ]


def is_defined(name: str, source: str) -> bool:
    return bool(re.search(rf"^(?:def|class) {name}\b|^{name} = ", source, re.MULTILINE))


def turns_back(parts: Sequence[str]) -> bool:
    """Whether a way through the parts goes down again after it came up."""
    heights = [list(ALLOWED).index(part) for part in parts]
    bottom = heights.index(min(heights))
    down, up = heights[: bottom + 1], heights[bottom:]
    return down != sorted(down, reverse=True) or up != sorted(up)


def needed_arrows(allowed: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """The fewest arrows that lead from each part to all that it may import."""
    return {
        (part, other)
        for part, others in allowed.items()
        for other in others
        if not any(other in allowed[between] for between in others)
    }


def drawn_arrows(picture: Path) -> set[tuple[str, str]]:
    elements = ElementTree.parse(picture).iter()
    ends = ((element.get("data-from"), element.get("data-to")) for element in elements)
    return {(start, end) for start, end in ends if start and end}


def test_what_the_page_names_exists():
    assert missing(PAGE) == []


@pytest.mark.parametrize("name", ["nn/no_such_file.py", "lab/no_such_folder/", "tests/nothing.py"])
def test_a_name_of_nothing_is_found(name: str):
    assert missing(f"see `{name}`, and `nn/transformer.py` in `nn/`") == [name]


def test_the_files_of_the_kernels_page_exist():
    page = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8")
    host_side = page.partition("## The host side")[2].partition("\n## ")[0]
    named = [code for code in CODE.findall(host_side) if code.endswith((".py", "/"))]
    folder = SOURCE / "attention" / "kernels"
    assert [name for name in named if not any(folder.glob(name.rstrip("/")))] == []
    assert "plans/" in named


def test_the_way_has_twenty_hops_at_most():
    numbers = [int(number) for number, *_ in HOP.findall(PAGE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 0 < len(numbers) <= MOST_HOPS


def test_every_hop_names_what_to_look_at():
    for number, hop in enumerate(hops(PAGE), start=1):
        assert hop, f"hop {number} has no file and name"
        for file, name in hop:
            source = (SOURCE / file).read_text(encoding="utf-8")
            assert is_defined(name, source), f"hop {number}: {file} has no {name}"


def test_a_name_that_a_file_does_not_define_is_found():
    assert is_defined("adamw_", "x = 1\ndef adamw_(x):\n    pass")
    assert not is_defined("adamw", "def adamw_(x):\n    pass")
    assert hops("| 1 | somewhere | something | nothing |") == [[]]


def test_no_hop_goes_back():
    files = [file for hop in hops(PAGE) for file, _ in hop]
    assert len(files) == len(set(files)), "a file is passed twice"
    # Each command goes down the house once, and comes up once.
    for command in PAGE.split("\n`hyla ")[1:]:
        parts = [hop[0][0].split("/")[0] for hop in hops(command)]
        assert parts
        assert not turns_back(parts), parts


def test_a_way_that_turns_back_is_found():
    assert not turns_back(["commands", "training", "nn", "attention", "tasks", "training"])
    assert turns_back(["commands", "nn", "training", "attention"])
    assert turns_back(["attention", "training", "nn", "results"])


def test_every_folder_is_one_sentence():
    rows = FOLDER.findall(PAGE)
    listed = dict(rows)
    assert len(rows) == len(listed), "a folder is listed twice"
    there = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_dir() and path.name != "__pycache__" and any(f.is_file() for f in path.iterdir())
    }
    assert listed.keys() == there
    for folder, sentence in listed.items():
        assert sentence.endswith("."), folder
        assert ". " not in sentence, f"{folder} is more than one sentence"


def test_the_picture_has_the_arrows_that_the_imports_keep():
    assert drawn_arrows(PICTURE) == needed_arrows(ALLOWED)


def test_an_arrow_too_many_or_too_few_is_found(tmp_path):
    allowed = {"attention": set(), "nn": {"attention"}, "training": {"attention", "nn"}}
    assert needed_arrows(allowed) == {("nn", "attention"), ("training", "nn")}
    picture = tmp_path / "picture.svg"
    picture.write_text('<svg><path data-from="training" data-to="attention"/><path/></svg>')
    assert drawn_arrows(picture) == {("training", "attention")}

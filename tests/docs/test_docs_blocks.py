"""What the documentation tells people to type works: its Python runs, its commands exist."""

import functools
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import cyclopts
import pytest
from markdown_blocks import ROOT, blocks, inline_commands, page_name, pages, shell_commands

import hyla.cli

# Words that belong to a shell, not to us.
SHELL = {"source", "for", "do", "done", "cd", "git", "export", "scancel"}
HERE = Path(__file__).parent


def python_blocks(page):
    return [block for block in blocks(page) if block.language == "python"]


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_the_python_of_a_page_is_python(page):
    """Also what is not run."""
    for block in python_blocks(page):
        compile("\n" * (block.line - 1) + block.code, page_name(page), "exec")


def test_the_python_of_all_pages_runs():
    done = subprocess.run(
        [sys.executable, HERE / "run_pages.py", *filter(python_blocks, pages())],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def commands():
    return [
        pytest.param(words, id=f"{page_name(page)}:{line} {' '.join(words)[:60]}")
        for page in pages()
        for line, words in shell_commands(page)
    ]


@pytest.mark.parametrize("words", commands())
def test_a_command_exists_with_its_options(words):
    while "=" in words[0]:  # a variable that is set for one command
        words = words[1:]
    program, *arguments = words
    match program:
        case "do":
            test_a_command_exists_with_its_options(arguments)
        case "hyla":
            _check_hyla(arguments)
        case "python" if arguments[0].endswith(".py"):
            assert (ROOT / arguments[0]).is_file()
        case "torchrun" | "python":
            module = arguments.index("-m")
            _check_module(arguments[module + 1], arguments[module + 2 :])
        case "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(arguments) <= set(targets)
        case "lm_eval":
            tasks = arguments[arguments.index("--tasks") + 1].split(",")
            files = (ROOT / "src/hyla/integrations/lm_eval").glob("*.yaml")
            text = "".join(map(Path.read_text, files))
            assert set(tasks) <= set(re.findall(r"^(?:task|tag): (\w+)", text, re.MULTILINE))
        case "pip":
            _check_pip(arguments)
        case _:
            assert program in SHELL, f"{program}: say in this test what to check about it"


def _check_hyla(arguments, *, whole=True):
    """Parse a command line without running it; one that is not `whole` may leave out arguments."""
    if arguments and arguments[0].startswith("--install-completion"):
        return
    arguments, _ = hyla.cli._split(arguments)  # there is no file to load
    try:
        hyla.cli._app(asked_for="").parse_args(arguments, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        if whole or not isinstance(error, cyclopts.MissingArgumentError):
            pytest.fail(f"hyla {' '.join(arguments)}: {error}")


def _check_module(module, arguments):
    if module == "hyla":
        _check_hyla(arguments)
        return
    assert find_spec(module) is not None, f"there is no module {module}"
    options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    if module.startswith("hyla") and options:
        assert options <= _options_of(module)


@functools.cache
def _options_of(module):
    shown = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"--[\w-]+", shown.stdout))


def _check_pip(arguments):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in arguments:
        if asked := re.fullmatch(r"(?:hyla|\.|.*\.whl)\[(.+)\]", word):
            assert set(asked[1].split(",")) <= set(extras["optional-dependencies"])


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_commands_in_the_text_exist(page):
    for _, (_, *arguments) in inline_commands(page):
        _check_hyla(arguments, whole=False)


def test_an_option_that_does_not_exist_is_found():
    with pytest.raises(pytest.fail.Exception, match="--no-such-option"):
        _check_hyla(["train", "fuzzy", "--no-such-option", "3"])
    with pytest.raises(pytest.fail.Exception, match="trian"):
        _check_hyla(["trian", "fuzzy"])


CODE = re.compile(r"^```.*?^```|`[^`]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        assert (page.parent / target).exists(), f"{page_name(page)} links to {target}"


def test_the_first_page_of_the_documentation_leads_to_all_others():
    docs = ROOT / "docs"
    linked = {docs / target for target in LINK.findall((docs / "index.md").read_text())}
    assert set(docs.rglob("*.md")) - linked == {docs / "index.md"}


def test_files_that_contributors_are_sent_to_exist():
    named = re.findall(r"`((?:src|tests|tools)/[\w/.]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []

"""The code of a Markdown page.

A page is read as a reader would type it: its Python blocks share a namespace, in order. Two HTML
comments, which no reader sees, are for what a page leaves out:

    <!-- setup:                          Python that is run where it stands, for the files it makes:
    finished_run("fuzzy-hyla-0123")      none of its names reaches the blocks that readers copy
    -->
    <!-- not run: needs eight GPUs -->   on the line before a block that cannot be run here

A block that is not run still has to be Python that compiles, or commands that exist.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*$")
_SETUP = re.compile(r"^<!-- setup:\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: (?P<reason>.+) -->$")
_INLINE = re.compile(r"(?<!`)`(hyla [^`]+)`(?!`)")


@dataclass(frozen=True, kw_only=True)
class Block:
    language: str
    code: str
    line: int
    """Where its first line of code stands in the page."""
    not_run: str | None = None
    """Why it cannot be run here."""
    hidden: bool = False
    """Whether it stands in a comment."""


def pages() -> list[Path]:
    """Every page with code for users, the ones a newcomer meets first in front."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    not_run = None
    for number, line in lines:
        if _SETUP.match(line):
            code = _until(lines, "-->")
            yield Block(language="python", code=code, line=number + 1, hidden=True)
        elif marker := _NOT_RUN.match(line):
            not_run = marker["reason"]
        elif fence := _FENCE.match(line):
            code = _until(lines, f"{fence['indent']}```")
            yield Block(language=fence["language"], code=code, line=number + 1, not_run=not_run)
            not_run = None


def _until(lines: Iterator[tuple[int, str]], end: str) -> str:
    taken = []
    for _, line in lines:
        if line == end:
            return "\n".join(taken) + "\n"
        taken.append(line)
    raise ValueError(f"a block is not closed by {end!r}")


def shell_commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """The commands of a page's shell blocks, as words, with the lines they stand in."""
    for block in blocks(page):
        if block.language not in ("bash", "sh", "shell", "console"):
            continue
        joined = block.code.replace("\\\n", " ")
        for offset, line in enumerate(joined.splitlines()):
            for command in re.split(r"\s(?:&&|;)\s|;$", line):
                words = shlex.split(command, comments=True)
                if words:
                    yield block.line + offset, words


def inline_commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Every `hyla …` in the running text, if it is a command and not a pattern for one."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        inside ^= bool(_FENCE.match(line))
        for command in () if inside else _INLINE.findall(line):
            if "…" not in command and "..." not in command:
                yield number, shlex.split(command)

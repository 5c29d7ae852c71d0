"""Write docs/gallery.md: every figure of the report, with what it shows and its command.

Run it after `hyla report` has drawn a figure that was not there before.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from hyla.lab.registry import BEYOND, NAMES, load
from hyla.results.conditions import Conditions
from hyla.training import SCALES

ROOT = Path(__file__).parent.parent
STORE = ROOT / "results" / "lab"
PAGE = ROOT / "docs" / "gallery.md"

_INTRODUCTION = """# Gallery

Every figure of the report (`results/lab/report.md`), the paper's first and then those of questions
beyond it. Where one was measured under several conditions, the closest to the paper's comes first.
Each command trains what is missing, measures and draws; `--dry-run` says what that would take.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(list(STORE.glob('*/figures/*.png')))} figures")


def page() -> str:
    """Return the page that fits what lies in the store."""
    paper = [name for name in NAMES if name not in BEYOND]
    sections = [("## The paper's figures", paper), ("## Beyond the paper", list(BEYOND))]
    lines = [_INTRODUCTION]
    for heading, names in sections:
        lines += [heading, "", *(line for name in names for line in _pictures(name))]
    return "\n".join(lines).rstrip() + "\n"


def _pictures(name: str) -> Iterator[str]:
    found = sorted(STORE.glob(f"*/figures/{name}.png"), key=_closeness)
    if not found:
        return
    experiment = load(name)
    yield from (f"### {_plain(experiment.title)}", "", _plain(experiment.shows), "")
    for picture in found:
        conditions = Conditions.from_label(picture.parts[-3])
        alternative = f"{name}, {conditions}"
        yield from (f"![{alternative}](../{picture.relative_to(ROOT).as_posix()})", "")
        yield from (f"{_sentence(conditions)}: `{_command(name, conditions)}`", "")


def _closeness(picture: Path) -> tuple[int, int]:
    conditions = Conditions.from_label(picture.parts[-3])
    return -SCALES.index(conditions.scale), conditions.shorten


def _sentence(conditions: Conditions) -> str:
    text = str(conditions)
    return text[0].upper() + text[1:]


def _command(name: str, conditions: Conditions) -> str:
    words = ["hyla reproduce", name, "--scale", conditions.scale]
    if conditions.shorten > 1:
        words += ["--shorten", str(conditions.shorten)]
    if conditions.precision != Conditions().precision:
        words += ["--precision", conditions.precision]
    return " ".join(words)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


if __name__ == "__main__":
    main()

"""What commands print: tables that fit the terminal, and plain lines elsewhere."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from hyla.training import Evaluation

# Wide enough that no row is wrapped where nobody looks at a screen: logs, pipes.
_PLAIN_WIDTH = 240

# Short enough for a table in a terminal of 80 columns.
HEADINGS = {
    "seed": "seed",
    "learning_rate": "lr",
    "weight_decay": "decay",
    "warmup_steps": "warmup",
}

BAR_WITH_ESTIMATE = (
    *Progress.get_default_columns()[:2],
    MofNCompleteColumn(),
    TimeRemainingColumn(),
)


class Screen(Console):
    """A console on stdout."""

    def __init__(self) -> None:
        super().__init__()
        if not self.is_terminal:
            self.width = _PLAIN_WIDTH

    def say(self, line: str) -> None:
        """Print a line as it is: no path in it is broken, coloured or taken for a style."""
        self.print(line, markup=False, highlight=False, soft_wrap=True)


def table(
    title: str,
    *columns: str,
    numeric: tuple[str, ...] = (),
    rows: Iterable[Iterable[str]] = (),
) -> Table:
    """Return a table; columns named in `numeric` are aligned right."""
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in numeric else "left")
    for row in rows:
        made.add_row(*row)
    return made


def score(value: float | None) -> str:
    """Three decimals; a dash for what was not measured."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def score_columns(evaluation: Evaluation, headline: str) -> dict[str, str]:
    """Return what is shown of a model, by heading: its scores on what it was scored on."""
    splits = {"test": "ID", "ood": "OOD"}
    scored = [split for split in splits if split in evaluation.splits] or [evaluation.headline]
    return {splits.get(split, split): f"{split}/{headline}" for split in scored}


class Advance(Protocol):
    """What moves a bar."""

    def __call__(self, number: int, what: str | None = None) -> None:
        """Move it by a number, and say what is done next."""


@contextmanager
def progress_bar(
    screen: Console, total: int, what: str = "", *, plain_seconds: float = math.inf
) -> Iterator[Advance]:
    """Show a bar while in a terminal; elsewhere, plain lines say what is done next.

    Every `plain_seconds` one of these says how much is done, and how long the rest will take.
    """
    began = told = time.monotonic()
    done = 0

    def advance(number: int, what: str | None = None) -> None:
        nonlocal told, done
        done += number
        progress.update(bar, advance=number, description=what)
        if screen.is_terminal:
            return
        now = time.monotonic()
        if what is None and now - told >= plain_seconds and done < total:
            left = timedelta(seconds=round((now - began) * (total - done) / max(1, done)))
            what, told = f"{done:,} of {total:,}, about {left} left", now
        if what is not None:
            screen.print(what, highlight=False)

    with Progress(
        *BAR_WITH_ESTIMATE, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        bar = progress.add_task(what, total=total)
        yield advance

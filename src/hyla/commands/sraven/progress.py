"""The progress bar of commands that go through many instances."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn


@contextmanager
def instances_bar(screen: Console, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while in a terminal; the callable moves it by a number of instances."""
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        bar = progress.add_task("Instances", total=total)
        yield lambda number: progress.advance(bar, number)

"""Writing a task's instances as Parquet files, as the commands of all tasks do it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.output import Screen, progress_bar
from hyla.training.devices import resolve_device

if TYPE_CHECKING:
    from hyla.tasks.parquet_folder import Export

_PLAIN_SECONDS = 10.0  # between two lines of progress where there is no terminal


def write_export(out: Path, settings: Export, *, device: str) -> None:
    """Write a dataset to the folder `out`, and say what it holds."""
    from hyla.tasks.parquet_folder import check_destination, export

    with usage_errors():
        where = resolve_device(device)
        check_destination(out, settings.format)
    screen = Screen()
    total = settings.instances * len(settings.splits)
    wanted = f"{settings.instances:,} instances of each of {', '.join(settings.splits)}"
    progress = progress_bar(screen, total, plain_seconds=_PLAIN_SECONDS)
    with progress as advance, write_errors(out):
        advance(0, f"Making {wanted}")
        files = export(out, settings, device=where, on_progress=advance)
    size = sum(path.stat().st_size for path in files)
    screen.say(f"{wanted} in {out} ({len(files)} files, {size / 1e6:,.1f} MB)")

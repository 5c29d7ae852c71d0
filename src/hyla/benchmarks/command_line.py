"""How benchmarks are recorded, and run by `python -m`.

Which is for a machine without the packages that `hyla bench` needs.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hyla._files import write_json
from hyla.benchmarks.cases import Row
from hyla.benchmarks.recorded import in_a_line
from hyla.results.origins import measured_with
from hyla.training.devices import resolve_device

_PRINT = partial(print, flush=True)


def parser_of(benchmark: str, description: str | None) -> argparse.ArgumentParser:
    """Return what reads the options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m hyla.benchmarks.{benchmark}", description=description
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each figure")
    parser.add_argument("--out", type=Path, help="JSON file of the rows")
    return parser


def add_only(parser: argparse.ArgumentParser) -> None:
    """Let `parser` read a part of the names of what is to be measured."""
    parser.add_argument(
        "--only",
        metavar="TEXT",
        action="append",
        default=[],
        help="measure what is called so, else what has this in its name; may be repeated",
    )


def record(
    measure: Callable[..., Iterator[Row]],
    device: torch.device | str,
    seconds: float,
    path: Path | None,
    *,
    show: Callable[[str], object] = _PRINT,
    writing: Callable[[Path], AbstractContextManager[object]] = nullcontext,
    **options: Any,
) -> list[Row]:
    """Show every row that `measure` yields, and write it with those before, inside of `writing`."""
    device = resolve_device(device)
    rows: list[Row] = []
    found = {"environment": measured_with(device), "rows": rows}
    show(" ".join(f"{key} {value}" for key, value in found["environment"].items() if value))
    for row in measure(device, seconds, **options):
        rows.append(row)
        show(in_a_line(row))
        # After every row: what was measured survives an interruption. And not before the first:
        # a benchmark that this machine cannot run leaves no empty folder among the runs.
        if path is not None:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, found)
    return rows

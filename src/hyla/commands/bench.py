"""`hyla bench`: speed on this machine, beside the authors'."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hyla.benchmarks import samplers, training
from hyla.benchmarks.environment import environment
from hyla.commands.exits import usage_errors
from hyla.commands.output import console, table
from hyla.training.loop import resolve_device

_BENCHMARKS = {"train": training.measure, "samplers": samplers.measure}


def bench(
    what: Annotated[
        Literal["train", "samplers"],
        Parameter(help="train: optimisation steps; samplers: batches of the tasks."),
    ],
    /,
    *,
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to measure.")] = "auto",
    seconds: Annotated[float, Parameter(help="Time for each figure.")] = 3.0,
    out: Annotated[Path, Parameter(help="Folder of the JSON file.")] = Path("results/bench"),
) -> None:
    """Measure speed on this machine, beside the figures of the authors' code.

    Training is timed only after its losses agree with the reference path. Figures go into
    OUT/WHAT-DEVICE.json together with device and versions; leave the machine alone meanwhile.
    """
    with usage_errors():
        where = resolve_device(device)
    screen = console()
    screen.print(" ".join(f"{key} {value}" for key, value in environment(where).items()))
    rows = []
    for row in _BENCHMARKS[what](where, seconds):
        rows.append(row)
        screen.print(" · ".join(f"{name} {_shown(value)}" for name, value in row.items() if value))
    shown = table(f"{what} on {environment(where)['device']}", *rows[0])
    for row in rows:
        shown.add_row(*map(_shown, row.values()))
    screen.print(shown)
    path = out / f"{what}-{where.type}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": environment(where), "rows": rows}, indent=1) + "\n")
    screen.print(f"Written to {path}")


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

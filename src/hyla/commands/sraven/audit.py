"""`hyla sraven audit`: how far the benchmark can be trusted."""

import json
from typing import Annotated, Literal

from cyclopts import Parameter

from hyla.commands.shared.exits import usage_errors
from hyla.commands.shared.output import Screen, progress_bar, table
from hyla.commands.sraven.task import TaskOptions, task_config
from hyla.tasks.sraven import Sraven
from hyla.tasks.sraven.solver.audit import audit as measure
from hyla.training.devices import resolve_device


def audit(
    *,
    instances: int = 100_000,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    task_options: TaskOptions = None,
) -> None:
    """Measure how ambiguous the instances are, and how well the best and the blind can do.

    For each split: the share of instances with several answers, by the paper's definition and by
    the authors' released check; the accuracy of the most probable answer, which no model can beat;
    and that of simple guesses.

    Parameters
    ----------
    instances
        Instances of each split.
    seed
        Seed of the split and its instances.
    device
        auto takes the GPU if there is one.
    as_json
        Print JSON instead of a table.
    """
    with usage_errors():
        config = task_config(task_options)
        where = resolve_device(device)
        screen = Screen()
        with progress_bar(screen, instances * len(Sraven(config).splits), "Instances") as advance:
            rows = measure(config, instances, seed=seed, device=where, on_progress=advance)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    splits = [row["split"].replace("_", " ") for row in rows]
    shown = table(
        f"SRAVEN, {instances:,} instances of each split, seed {seed}: per cent",
        *("", *splits),
        numeric=tuple(splits),
    )
    names = [name for name in rows[0] if f"{name}_se" in rows[0]]
    for name in names:
        shown.add_row(name.replace("_", " "), *(f"{100 * row[name]:.2f}" for row in rows))
    screen.print(shown)
    # Each with its own would be wider than a terminal.
    largest = max(row[f"{name}_se"] for row in rows for name in names)
    screen.print(f"Standard errors are {100 * largest:.2f} at most; --json has each of them.")

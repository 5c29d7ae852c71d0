"""`hyla bench`: speed on this machine, beside the authors'."""

import math
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hyla._files import write_json
from hyla.benchmarks import (
    attention,
    explorer,
    language,
    outputs,
    samplers,
    small_attention,
    solver,
    training,
)
from hyla.benchmarks.cases import check_rows
from hyla.benchmarks.recorded import RECORDED, beside_recorded, in_a_line, shown
from hyla.commands.shared.exits import usage_errors, write_errors
from hyla.commands.shared.options import check_writable
from hyla.commands.shared.output import Screen, table
from hyla.results.origins import measured_with
from hyla.training.devices import resolve_device

_BENCHMARKS = {
    "train": training.measure,
    "samplers": samplers.measure,
    "solver": solver.measure,
    "attention": attention.measure,
    "small-attention": small_attention.measure,
    "outputs": outputs.measure,
    "language": language.measure,
    "explorer": explorer.measure,
}


def bench(
    what: Annotated[
        Literal[tuple(_BENCHMARKS)],  # pyright: ignore[reportInvalidTypeForm]
        Parameter(
            help="train: optimisation steps; samplers: batches of the tasks; solver: SRAVEN's; "
            "attention: the fused kernels beside fused softmax (needs a GPU); "
            "small-attention: that of small heads beside compiled einsums (needs a GPU); "
            "outputs: what scaling or normalising their outputs costs (needs a GPU); "
            "language: training language models, beside a plain PyTorch loop; "
            "explorer: requests of the web page."
        ),
    ],
    /,
    *,
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to measure.")] = "auto",
    seconds: Annotated[float, Parameter(help="Time for each figure.")] = 3.0,
    quick: Annotated[
        bool, Parameter(help="Of train, only the rows that matter most.", negative=())
    ] = False,
    out: Annotated[Path, Parameter(help="Folder of the JSON file.")] = Path("runs/bench"),
) -> None:
    """Measure speed on this machine, beside the figures of the authors' code.

    Theirs are constants, measured once with their JAX release on an H200 and on two CPU cores.
    Training is timed only after its losses agree with the reference path, and shown beside what
    was recorded on other machines (results/bench). Figures go into OUT/WHAT-DEVICE.json together
    with device, versions and commit: of train, send it to stand in that table. Leave the machine
    alone meanwhile.
    """
    with usage_errors():
        if not 0 < seconds < math.inf:
            raise ValueError(f"--seconds must be positive and finite, got {seconds}")
        if quick and what != "train":
            raise ValueError(f"--quick is for train, and {what} has no such rows")
        where = resolve_device(device)
        check_writable(out=out)
    origin = measured_with(where)  # of the source as it is now, which may change meanwhile
    screen = Screen()
    screen.print(" ".join(f"{key} {value}" for key, value in origin.items() if value))
    path = out / f"{what}-{where.type}.json"
    rows = []
    options = {"quick": True} if quick else {}
    for row in _BENCHMARKS[what](where, seconds, **options):
        rows.append(row)
        screen.print(in_a_line(row))
        # After every row: what was measured survives an interruption. And not before the first:
        # a benchmark that this machine cannot run leaves no empty folder among the runs.
        with write_errors(path):
            out.mkdir(parents=True, exist_ok=True)
            write_json(path, {"environment": origin, "rows": rows})
    if what == "train":
        lines = beside_recorded(rows, RECORDED)
    else:
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines = [{name: shown(row.get(name)) for name in names} for row in rows]
    title = f"{what} on {origin['device']}"
    screen.print(table(title, *lines[0], rows=(line.values() for line in lines)))
    screen.say(f"Written to {path}")
    check_rows(rows)

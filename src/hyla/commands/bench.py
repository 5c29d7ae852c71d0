"""`hyla bench`: speed on this machine, beside the authors'."""

import math
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape

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
from hyla.benchmarks.command_line import record
from hyla.benchmarks.recorded import RECORDED, beside_recorded, shown
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
    screen = Screen()
    path = out / f"{what}-{where.type}.json"
    options = {"quick": True} if quick else {}
    rows = record(
        _BENCHMARKS[what],
        where,
        seconds,
        path,
        show=screen.say,
        writing=write_errors,
        **options,
    )
    if what == "train":
        lines = beside_recorded(rows, RECORDED)
    else:
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines = [{name: escape(shown(row.get(name))) for name in names} for row in rows]
    title = f"{what} on {measured_with(where)['device']}"
    screen.print(table(title, *lines[0], rows=(line.values() for line in lines)))
    screen.say(f"Written to {path}")
    check_rows(rows)

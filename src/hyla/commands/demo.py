"""`hyla demo`."""

import statistics
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hyla.commands.shared.exits import continued_after_ctrl_c, usage_errors
from hyla.commands.shared.options import check_writable
from hyla.commands.shared.output import console, score, table
from hyla.lab.demo import check_figures, run_demo, verdict, write_results
from hyla.training.devices import resolve_device


@continued_after_ctrl_c()
def demo(
    *,
    root: Annotated[Path, Parameter(help="Where the runs are kept.")] = Path("runs/demo"),
    out: Annotated[Path, Parameter(help="Where the figure and the page go.")] = Path("runs/demo"),
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Parameter(help="auto takes the GPU if there is one.")
    ] = "auto",
) -> None:
    """Show the paper's effect in minutes: HYLA against softmax and linear attention.

    Each model learns fuzzy logic functions in context and is then asked for functions whose terms
    it knows but whose combination it has never seen. Runs that are finished are not repeated.
    """
    with usage_errors():
        resolve_device(device)
        check_writable(root=root, out=out)
        check_figures()
    results = run_demo(root=root, device=device)
    shown = table(
        "R² on fuzzy logic functions",
        "attention",
        "seen combinations",
        "unseen combinations",
        "seconds",
        numeric=("seen combinations", "unseen combinations", "seconds"),
    )
    for result in results:
        shown.add_row(
            result.method,
            score(statistics.fmean(result.in_distribution)),
            score(statistics.fmean(result.out_of_distribution)),
            f"{result.seconds:.0f}",
        )
    picture, page = write_results(results, out)
    screen = console()
    screen.print(shown)
    screen.print(verdict(results))
    screen.print(f"Figure: {picture}   Page: {page}")

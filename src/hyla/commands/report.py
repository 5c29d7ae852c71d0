"""`hyla report`: the figures and the pages again, from what is in the store."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hyla.commands.exits import UsageError
from hyla.commands.output import console, table
from hyla.lab.pages import write_all
from hyla.lab.results import stored_settings


def report(
    out: Annotated[
        Path, Parameter(help="Folder of the tables; figures and report go there too.")
    ] = Path("results/lab"),
) -> None:
    """Build the figures and the report again from what was measured, without training.

    Reads the tables that `hyla reproduce` left in OUT and writes OUT/report.md, OUT/report.html
    (one file that needs no network) and a PNG and a PDF of every figure. Prints each claim of the
    paper with its verdict and the numbers that say so.
    """
    if not stored_settings(out):
        raise UsageError(
            f"{out} holds no results: OUT is the folder that `hyla reproduce` wrote its tables to, "
            "results/lab if not told otherwise; `hyla reproduce all --scale smoke` makes some"
        )
    screen = console()
    write_report(
        out, say=lambda line: screen.print(line, markup=False, highlight=False, soft_wrap=True)
    )


def write_report(out: Path, *, say: Callable[[str], None]) -> None:
    """Write the report's files and print the verdicts."""
    sections = write_all(out, say)
    shown = table("Claims of the paper", "setting", "", "verdict", "claim", "measured")
    for section in sections:
        # At smoke scale nothing has been learnt that could be judged.
        for verdict in section.verdicts if section.setting.scale != "smoke" else ():
            shown.add_row(
                section.setting.label,
                section.experiment.name,
                verdict.status,
                verdict.claim,
                verdict.number,
            )
    if shown.row_count:
        console().print(shown)

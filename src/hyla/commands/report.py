"""`hyla report`: the figures and the pages again, from what is in the store."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hyla._errors import UnfinishedError
from hyla.commands.shared.exits import UsageError, full_disk, usage_errors
from hyla.commands.shared.options import check_writable
from hyla.commands.shared.output import Screen, table
from hyla.lab.report.pages import write_all
from hyla.lab.report.sections import failures
from hyla.results.tables import stored_conditions


def report(
    out: Annotated[
        Path, Parameter(help="Folder of the tables; figures and report go there too.")
    ] = Path("results/lab"),
) -> None:
    """Build the figures and the report again from what was measured, without training.

    Reads the tables that `hyla reproduce` left in OUT and writes OUT/report.md, OUT/report.html
    (one file that needs no network) and a PNG and a PDF of every figure. Prints each claim of the
    paper, and each question beyond it, with its verdict and the numbers that say so; what was
    trained at smoke scale, which goes to results/smoke, is not judged.
    """
    with usage_errors():
        check_writable(out=out)
    if not stored_conditions(out):
        raise UsageError(
            f"{out} holds no results: OUT is the folder that `hyla reproduce` wrote its tables to, "
            "results/lab if not told otherwise, or results/smoke at smoke scale; `hyla reproduce "
            "all --scale smoke` makes some there"
        )
    if failed := write_report(out, Screen()):
        raise UnfinishedError("not all of the report could be drawn:\n  " + "\n  ".join(failed))


def write_report(out: Path, screen: Screen) -> list[str]:
    """Write the report's files and print the verdicts; return what could not be drawn."""
    # The status is a line of a terminal, and nothing elsewhere.
    with screen.status("building the report") as status, full_disk(out):
        sections = write_all(out, screen.say, progress=status.update)
    columns = ("conditions", "", "verdict", "claim", "measured")
    shown = table("Claims of the paper, and questions beyond it", *columns)
    unjudged = 0
    for section in sections:
        if section.conditions.scale == "smoke":  # nothing has been learnt that could be judged
            unjudged += len(section.verdicts)
            continue
        for verdict in section.verdicts:
            shown.add_row(
                section.conditions.label,
                section.experiment.name,
                verdict.status,
                verdict.claim,
                verdict.number,
            )
    if shown.row_count:
        screen.print(shown)
    if unjudged:
        screen.say(
            f"Claims listed at smoke scale: {unjudged}. None is judged: too little is learnt."
        )
    return failures(sections)

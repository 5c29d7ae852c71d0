"""`hyla sweep`: train a grid, wherever, and put its results into one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from rich.table import Table

from hyla._errors import install_command
from hyla.commands.shared.exits import continued_after_ctrl_c, usage_errors, write_errors
from hyla.commands.shared.lab_screen import LabScreen
from hyla.commands.shared.options import check_folders, check_writable
from hyla.commands.shared.output import HEADINGS, score_columns, table
from hyla.lab.plan.pipeline import Found, Launch
from hyla.lab.plan.shares import Share
from hyla.lab.plan.slurm import SlurmOptions
from hyla.lab.plan.sweep import Sweep
from hyla.results.runs import Row
from hyla.results.selection import (
    HYPERPARAMETERS,
    estimate,
    has_metric,
    hyperparameters_of,
    validation_metric,
)

_SLURM = Group("Slurm: what each job asks for", sort_key=2)
_LAUNCH = Launch()


@continued_after_ctrl_c()
def sweep(
    grid: Path,
    /,
    *,
    launch: Annotated[Launch, Parameter(name="*")] = _LAUNCH,
    out: Path = Path("results"),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    slurm: Annotated[SlurmOptions | None, Parameter(group=_SLURM)] = None,
) -> None:
    """Train every combination of a grid of settings, and choose the best fairly.

    Combinations that differ in seed, learning rate, decay or warmup alone train together, as one
    population. What is finished is skipped and what was interrupted is continued, so the same
    command collects, repeats and extends a sweep. For each method, the hyper-parameters with the
    best mean over seeds on the *validation* split are picked; the OOD set has no say.

    Writes one row per model to `OUT/grid.parquet` and `OUT/grid.csv`, named after the grid's file.

    A grid:

        task: fuzzy
        scale: laptop
        set: {steps: 1000}
        grid:
          model.attention: [hyla, softmax, linear]
          members.learning_rate: [1e-3, 3e-3]
          members.seed: [0, 1, 2]

    Examples:

    - `hyla sweep grid.yaml --dry-run`: what would be trained, and what is there already
    - `hyla sweep grid.yaml`: on this machine, by one process
    - `hyla sweep grid.yaml --launcher slurm --slurm.partition gpu --slurm.gpus-per-node 1`

    Parameters
    ----------
    grid
        YAML file with task, scale, set (settings over the preset) and grid (lists of values).
    out
        Folder of the table.
    dry_run
        List the populations and their state, and train nothing.
    """
    screen = LabScreen()
    with usage_errors():
        job = Sweep(grid=grid, out=out, slurm=slurm, **vars(launch))
        check = check_folders if dry_run else check_writable
        check(root=job.root, out=out)
        job.check_device()
    if dry_run:
        screen.show(_populations(job.plan()))
        return
    with screen:
        outcome = job.run(screen)
    if not outcome.submitted:
        found = outcome.found
        screen.show(_best(found, job.headline))
        with usage_errors(), write_errors(out):
            written = job.write(outcome)
        if written:
            places = " and ".join(map(str, written))
            needs = f" (Parquet needs pyarrow: {install_command('tables')})"
            models = sum(len(one.rows) for one in found)
            screen.say(f"{models} models in {places}{'' if len(written) > 1 else needs}")
    outcome.check()


def _populations(shares: Sequence[Share]) -> Table:
    shown = table(
        f"{len(shares)} populations", "method", "members", "state", "run", numeric=("members",)
    )
    for share in shares:
        members = str(len(share.config.members))
        shown.add_row(str(share.method), members, share.state, share.path.name)
    return shown


def _best(found: Sequence[Found], headline: str) -> Table:
    """Return a line for each method: the settings that validation picks, and their scores."""
    keys = [key.rpartition(".")[2] for key in found[0].method.settings]
    chosen = [HEADINGS[name] for name in HYPERPARAMETERS]
    columns = score_columns(found[0].method.config.evaluation, headline)
    scores = ("validation", *(name for name in columns if name != "validation"))
    shown = table(
        f"{headline}, mean ± standard error over seeds, at the settings best on validation",
        *(*keys, *chosen, "seeds", *scores, ""),
        numeric=(*chosen, "seeds", *scores),
    )
    for one in found:
        label = [str(value) for value in one.method.settings.values()]
        if not one.complete:
            dashes = ["-"] * (len(HYPERPARAMETERS) + 1 + len(scores))
            shown.add_row(*label, *dashes, "not finished")
            continue
        first = one.picked[0]
        metrics = columns | {"validation": validation_metric(one.rows, headline)}
        diverged = sum(row["diverged"] for row in one.picked)
        shown.add_row(
            *label,
            *(f"{value:g}" for value in hyperparameters_of(first)),
            str(len(one.picked)),
            *(_mean(one.picked, metrics[name]) for name in scores),
            f"{diverged} diverged" if diverged else "",
        )
    return shown


def _mean(rows: Sequence[Row], metric: str) -> str:
    return str(estimate(rows, metric)) if all(has_metric(row, metric) for row in rows) else "-"

"""`hyla sweep`: train a grid, wherever, and put its results into one table."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from rich.console import Console
from rich.table import Table

from hyla._errors import install_command
from hyla.commands.completeness import check_trained
from hyla.commands.exits import continued_after_ctrl_c, usage_errors
from hyla.commands.options import check_at_least_one, check_folders, check_writable
from hyla.commands.output import HEADINGS, console, table
from hyla.commands.slurm_jobs import check_launcher, train_on_slurm
from hyla.lab.plan.launch import SlurmOptions, train_locally
from hyla.lab.plan.sweep import Method, Share, finished_rows, plan, read_sweep
from hyla.results.runs import Row
from hyla.results.selection import (
    HYPERPARAMETERS,
    best_setting,
    estimate,
    setting_of,
    validation_metric,
)
from hyla.results.sweep_table import write_table
from hyla.training.devices import resolve_device
from hyla.training.objectives import objective_of

_SLURM = Group("Slurm: what each job asks for", sort_key=2)


@continued_after_ctrl_c()
def sweep(
    grid: Path,
    /,
    *,
    root: Path = Path("runs"),
    out: Path = Path("results"),
    launcher: Literal["local", "slurm"] = "local",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    max_population: int = 64,
    max_seconds: float | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    wait: Annotated[bool, Parameter(name="--wait", negative="--no-wait")] = True,
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
    - `hyla sweep grid.yaml`: one population after the other, on this machine
    - `hyla sweep grid.yaml --launcher slurm --slurm.partition gpu --slurm.gpus-per-node 1`

    Parameters
    ----------
    grid
        YAML file with task, scale, set (settings over the preset) and grid (lists of values).
    root
        Folder of the run directories; on a cluster, one that all nodes share.
    out
        Folder of the table.
    launcher
        local: one population after the other; slurm: a job array, one job per population.
    device
        auto takes the GPU if there is one.
    max_population
        Most models that train together.
    max_seconds
        Stop after this time, with a checkpoint (launcher local).
    dry_run
        List the populations and their state, and train nothing.
    wait
        With Slurm, wait for the jobs and collect; --no-wait returns after submission.
    """
    out_console = console()

    def say(line: str) -> None:
        out_console.print(line, markup=False, highlight=False, soft_wrap=True)

    with usage_errors():
        methods = read_sweep(grid)
        check_at_least_one(max_population=max_population)
        check = check_folders if dry_run else check_writable
        check(root=root, out=out)
        shares = plan(methods, root, max_population)
        check_launcher(launcher, max_seconds=max_seconds, wait=wait, options=slurm)
        if launcher == "local":
            where = resolve_device(device)
            for method in methods:
                method.config.check_device(where)
    if dry_run:
        out_console.print(_populations(shares))
        return

    unfinished = [share for share in shares if not share.finished]
    failures: list[str] = []
    busy: list[Share] = []
    if unfinished and launcher == "local":
        busy = train_locally(
            unfinished,
            root=root,
            device=device,
            max_seconds=math.inf if max_seconds is None else max_seconds,
            say=say,
        )
    elif unfinished:
        found = train_on_slurm(
            unfinished, root=root, device=device, options=slurm, wait=wait, out=out_console
        )
        if found is None:
            return
        failures = found

    shares = plan(methods, root, max_population)
    _collect(methods, shares, out / grid.stem, out_console)
    check_trained(shares, failures, busy)


def _populations(shares: Sequence[Share]) -> Table:
    shown = table(
        f"{len(shares)} populations", "method", "members", "state", "run", numeric=("members",)
    )
    for share in shares:
        members = str(len(share.config.members))
        shown.add_row(str(share.method), members, share.state, share.path.name)
    return shown


def _collect(methods: Sequence[Method], shares: Sequence[Share], path: Path, out: Console) -> None:
    """Write the table of all finished members, and print a line per complete method."""
    # One headline for all: a sweep has one task.
    headline = objective_of(methods[0].config.build_task()).headline
    keys = [key.rpartition(".")[2] for key in methods[0].settings]
    chosen = [HEADINGS[name] for name in HYPERPARAMETERS]
    scores = ("validation", "ID", "OOD")
    shown = table(
        f"{headline}, mean ± standard error over seeds, at the settings best on validation",
        *(*keys, *chosen, "seeds", *scores, ""),
        numeric=(*chosen, "seeds", *scores),
    )
    rows: list[Row] = []
    for method in methods:
        own = [share for share in shares if share.method is method]
        found = finished_rows(own)
        label = [str(value) for value in method.settings.values()]
        if not all(share.finished for share in own):
            # A choice among some of the settings would not be the sweep's.
            rows += [{**row, "picked": False} for row in found]
            dashes = ["-"] * (len(HYPERPARAMETERS) + 1 + len(scores))
            shown.add_row(*label, *dashes, "not finished")
            continue
        best = best_setting(found, headline)
        picked = [row for row in found if setting_of(row) == best]
        rows += [{**row, "picked": setting_of(row) == best} for row in found]
        metrics = (validation_metric(found[0], headline), f"test/{headline}", f"ood/{headline}")
        diverged = sum(row["diverged"] for row in picked)
        shown.add_row(
            *label,
            *(f"{value:g}" for value in best),
            str(len(picked)),
            *(str(estimate(picked, metric)) if metric in found[0] else "-" for metric in metrics),
            f"{diverged} diverged" if diverged else "",
        )
    out.print(shown)
    if rows:
        with usage_errors():
            written = write_table(rows, path)
        places = " and ".join(map(str, written))
        needs = f" (Parquet needs pyarrow: {install_command('tables')})"
        note = "" if len(written) > 1 else needs
        line = f"{len(rows)} models in {places}{note}"
        out.print(line, soft_wrap=True, highlight=False, markup=False)

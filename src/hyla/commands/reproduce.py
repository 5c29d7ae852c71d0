"""`hyla reproduce`: figures and tables of the paper, from nothing to the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Group, Parameter
from rich.table import Table

from hyla._errors import check_at_least_one
from hyla.commands.report import write_report
from hyla.commands.shared.exits import continued_after_ctrl_c, usage_errors
from hyla.commands.shared.lab_screen import LabScreen
from hyla.commands.shared.options import check_folders, check_writable
from hyla.commands.shared.output import table
from hyla.lab.estimate import in_words
from hyla.lab.experiment import Experiment
from hyla.lab.plan.reproduction import Cost, Extent, LabLaunch, Reproduction
from hyla.lab.plan.shares import Share
from hyla.lab.plan.slurm import SlurmOptions
from hyla.lab.registry import load_all
from hyla.results.tables import stored_conditions
from hyla.training.devices import resolve_device

_EFFORT = Group("How much of it", sort_key=1)
_RUN = Group("Where and how it runs", sort_key=2)
_SLURM = Group("Slurm: what each job asks for", sort_key=3)
_EXTENT, _LAUNCH = Extent(), LabLaunch()


@continued_after_ctrl_c()
def reproduce(
    *names: Annotated[str, Parameter(negative=())],
    extent: Annotated[Extent, Parameter(name="*", group=_EFFORT)] = _EXTENT,
    only: Annotated[list[str] | None, Parameter(group=_EFFORT)] = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    launch: Annotated[LabLaunch, Parameter(name="*", group=_RUN)] = _LAUNCH,
    out: Annotated[Path | None, Parameter(group=_RUN)] = None,
    remeasure: Annotated[bool, Parameter(group=_RUN, negative=())] = False,
    report: Annotated[bool, Parameter(group=_RUN, negative="--no-report")] = True,
    allow_dirty: Annotated[bool, Parameter(group=_RUN, negative=())] = False,
    slurm: Annotated[SlurmOptions | None, Parameter(group=_SLURM)] = None,
) -> None:
    """Reproduce figures and tables of the paper, and set them beside its numbers.

    Trains what a figure needs (models that several figures share are trained once), measures on
    the trained models, puts the numbers into small tables under OUT, and rebuilds the report there.
    Kill it at any moment: the same command continues. `hyla report OUT` rebuilds the report alone.

    Examples:

    - `hyla reproduce all --scale smoke`: everything end to end in minutes; the numbers mean nothing
    - `hyla reproduce tableA1 --scale paper --dry-run`: what it would take
    - `hyla reproduce tableA1 --scale paper --precision tf32 --max-seconds 500`: a slice of it
    - `hyla reproduce fig4a --scale paper --seeds 1 --no-search --only steps=156250`: a part of it
    - `hyla reproduce fig2c --scale paper --launcher slurm --slurm.gpus-per-node 1`

    Exit codes: 0 done; 75 stopped with everything saved, run it again; 130 Ctrl-C; 2 wrong usage;
    1 something failed.

    Parameters
    ----------
    names
        Figures and tables, such as fig2c or tableA1, or all. Without any, lists them.
    only
        Train only models with these settings, as in `--only task_name=fuzzy seed=0,1`.
    dry_run
        List the populations, their state and the estimated time, and train nothing.
    out
        Folder of the tables, figures and the report. (default: results/smoke at smoke scale, else
        results/lab)
    remeasure
        Measure on trained models again, also where nothing new was trained.
    report
        Rebuild the report at the end; --no-report leaves it.
    allow_dirty
        Collect what was computed with uncommitted changes, too; the report marks it.
    """
    screen = LabScreen()
    with usage_errors():
        if not names:
            screen.show(_listing(load_all(["all"])))
            return
        check_at_least_one(seeds=extent.seeds, shorten=extent.shorten)
        job = Reproduction(
            names=names,
            only=_only(only or []),
            out=out,
            remeasure=remeasure,
            allow_dirty=allow_dirty,
            slurm=slurm,
            **vars(extent),
            **vars(launch),
        )
        check = check_folders if dry_run else check_writable
        check(root=job.root, out=job.store)
        # A dry run for a GPU may happen where there is none.
        elsewhere = dry_run and job.device != "auto"
        where = torch.device(job.device) if elsewhere else resolve_device(job.device)
        if not dry_run:
            job.check_source()  # planning may take GPU minutes
    shares = job.plan(None if dry_run else screen.say)
    if not dry_run:
        with usage_errors():
            job.check_origins(shares)
    seconds = job.seconds(shares, where)
    if dry_run:
        screen.show(_populations(shares, seconds))
    title = f"{job.conditions}: estimates for one process on {where.type}"
    screen.show(_costs(title, job.costs(shares, seconds, where)))
    screen.say(
        "The estimates are of training steps alone: evaluation, measuring and report come on top."
    )
    for line in job.announcements():
        screen.say(line)
    if by_hand := job.trained_by_hand(shares):
        screen.say(f"NOTE: {by_hand}")
    if dry_run:
        return
    with screen:
        outcome = job.run(screen, shares)
    if report and outcome.ended and stored_conditions(job.store):
        outcome.unmeasured += write_report(job.store, screen.console)
    outcome.check()


def _only(texts: Sequence[str]) -> dict[str, list[str]]:
    wanted: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise ValueError(f"--only {text}: say which values, as in --only task_name=fuzzy")
        wanted.setdefault(key, []).extend(values.split(","))
    return wanted


def _listing(experiments: Sequence[Experiment]) -> Table:
    rows = ((experiment.name, experiment.title) for experiment in experiments)
    return table("hyla reproduce NAME ...", "name", "what it is", rows=rows)


def _populations(shares: Sequence[Share], seconds: Sequence[float]) -> Table:
    shown = table(
        f"{len(shares)} populations",
        *("runs", "models", "steps", "state", "estimate", "directory"),
        numeric=("models", "steps", "estimate"),
    )
    for share, time in zip(shares, seconds, strict=True):
        shown.add_row(
            str(share.method),
            str(len(share.config.members)),
            f"{share.config.steps:,}",
            share.state,
            in_words(time),
            share.path.name,
        )
    return shown


def _costs(title: str, costs: Sequence[Cost]) -> Table:
    shown = table(
        title,
        *("name", "models", "finished", "estimate", "what it is"),
        numeric=("models", "finished", "estimate"),
    )
    for cost in costs:
        # Without models, what it may train its measurement does.
        counts = (str(cost.models), str(cost.finished)) if cost.models else "--"
        estimate = in_words(cost.seconds) if cost.models or cost.seconds else "-"
        shown.add_row(cost.name, *counts, estimate, cost.title)
    return shown

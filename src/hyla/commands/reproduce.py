"""`hyla reproduce`: figures and tables of the paper, from nothing to the report."""

import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import Group, Parameter
from rich.table import Table

from hyla._environment import environment
from hyla.commands.completeness import check_trained, listed
from hyla.commands.exits import UnfinishedError, continued_after_ctrl_c, usage_errors
from hyla.commands.options import check_at_least_one, check_folders, check_writable
from hyla.commands.output import console, table
from hyla.commands.report import write_report
from hyla.commands.slurm_jobs import check_launcher, train_on_slurm
from hyla.lab.experiment import Experiment
from hyla.lab.measuring import NotAvailableError
from hyla.lab.plan.estimate import in_words, seconds_for
from hyla.lab.plan.launch import SlurmOptions
from hyla.lab.plan.reproduce import (
    Effort,
    check_only,
    collect,
    collect_ceilings,
    measure,
    methods_of,
    shares_of,
)
from hyla.lab.plan.sweep import Share
from hyla.lab.plan.workers import Outcome, train_shares
from hyla.lab.registry import load_all
from hyla.results.runs import Row
from hyla.results.setting import Setting
from hyla.results.tables import Tables, method_key, stored_settings
from hyla.training import Interrupted
from hyla.training.devices import resolve_device

_EFFORT = Group("How much of it", sort_key=1)
_RUN = Group("Where and how it runs", sort_key=2)
_SLURM = Group("Slurm: what each job asks for", sort_key=3)

_OUT = Path("results/lab")
# Apart, as its numbers mean nothing, and git ignores it.
_SMOKE_OUT = Path("results/smoke")


@continued_after_ctrl_c()
def reproduce(
    *names: Annotated[str, Parameter(negative=())],
    scale: Annotated[str, Parameter(group=_EFFORT)] = "laptop",
    seeds: Annotated[int | None, Parameter(group=_EFFORT)] = None,
    search: Annotated[bool, Parameter(group=_EFFORT, negative="--no-search")] = True,
    only: Annotated[list[str] | None, Parameter(group=_EFFORT)] = None,
    shorten: Annotated[int, Parameter(group=_EFFORT)] = 1,
    precision: Annotated[str, Parameter(group=_EFFORT)] = "float32",
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    root: Annotated[Path, Parameter(group=_RUN)] = Path("runs/lab"),
    out: Annotated[Path | None, Parameter(group=_RUN)] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(group=_RUN)] = "auto",
    workers: Annotated[int, Parameter(group=_RUN)] = 1,
    max_population: Annotated[int, Parameter(group=_RUN)] = 24,
    max_seconds: Annotated[float | None, Parameter(group=_RUN)] = None,
    launcher: Annotated[Literal["local", "slurm"], Parameter(group=_RUN)] = "local",
    wait: Annotated[bool, Parameter(group=_RUN, negative="--no-wait")] = True,
    remeasure: Annotated[bool, Parameter(group=_RUN, negative=())] = False,
    report: Annotated[bool, Parameter(group=_RUN, negative="--no-report")] = True,
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
    scale
        smoke (seconds a run), laptop (minutes, two cores) or paper (the paper's own setting).
    seeds
        Seeds of each method; without it, 3 at paper scale and 2 at the others.
    search
        Search the hyper-parameters of Table A3; --no-search takes the preset's alone.
    only
        Train only models with these settings, as in `--only task_name=fuzzy seed=0,1`.
    shorten
        Take one in N of the scale's steps. Such results are kept and shown apart.
    precision
        float32, tf32 or bf16. Results of each are kept and shown apart.
    dry_run
        List the populations, their state and the estimated time, and train nothing.
    root
        Folder of the run directories; on a cluster, one that all nodes share.
    out
        Folder of the tables, figures and the report. (default: results/smoke at smoke scale, else
        results/lab)
    device
        auto takes the GPU if there is one.
    workers
        Processes that train at the same time: one or more for each GPU.
    max_population
        Most models that train together as one population.
    max_seconds
        Stop after this time, with everything saved (launcher local).
    launcher
        local: on this machine; slurm: a job array, one job per population.
    wait
        With Slurm, wait for the jobs and collect; --no-wait returns after submission.
    remeasure
        Measure on trained models again, also where nothing new was trained.
    report
        Rebuild the report at the end; --no-report leaves it.
    """
    out_console = console()

    def say(line: str) -> None:
        out_console.print(line, markup=False, highlight=False, soft_wrap=True)

    with usage_errors():
        if not names:
            out_console.print(_listing(load_all(["all"])))
            return
        check_at_least_one(
            seeds=seeds, shorten=shorten, workers=workers, max_population=max_population
        )
        setting = Setting(scale=scale, shorten=shorten, precision=precision)
        effort = Effort(seeds=seeds, search=search, only=_only(only or []))
        experiments = load_all(names)
        check_only(experiments, setting, effort)
        if out is None:
            out = _SMOKE_OUT if setting.scale == "smoke" else _OUT
        check = check_folders if dry_run else check_writable
        check(root=root, out=out)
        check_launcher(launcher, max_seconds=max_seconds, wait=wait, options=slurm, workers=workers)
        # A dry run for a GPU may happen where there is none.
        where = torch.device(device) if dry_run and device != "auto" else resolve_device(device)

    def planned() -> list[Share]:
        return shares_of(experiments, setting, effort, root=root, max_population=max_population)

    tables = Tables(out, setting)
    shares = planned()
    measured = _measured_on(where, tables)
    if dry_run:
        out_console.print(_populations(shares, where.type, measured))
    out_console.print(_costs(experiments, shares, setting, effort, where.type, measured))
    say("The estimates are of training steps alone: evaluation, measuring and report come on top.")
    for experiment in experiments:
        if experiment.measurement is not None and experiment.measurement.announce is not None:
            say(f"{experiment.name}: {experiment.measurement.announce(setting, root)}")
    if dry_run:
        return

    deadline = time.monotonic() + (math.inf if max_seconds is None else max_seconds)
    unfinished = [share for share in shares if not share.finished]
    outcome = Outcome()
    stopped: Interrupted | None = None
    if unfinished and launcher == "slurm":
        found = train_on_slurm(
            unfinished, root=root, device=device, options=slurm, wait=wait, out=out_console
        )
        if found is None:
            return
        outcome.failures = found
    elif unfinished:
        try:
            outcome = train_shares(
                unfinished,
                root=root,
                device=device,
                workers=workers,
                max_seconds=deadline - time.monotonic(),
                say=say,
            )
        except Interrupted as stop:
            stopped = stop

    shares = planned()
    collect(shares, tables)
    if stopped is None:
        collect_ceilings(experiments, tables, device)
        try:
            for name, experiment in _measurements(experiments).items():
                if unfinished or remeasure or not tables.measured(name):
                    with _noting_failures(name, outcome.failures, say):
                        count = measure(
                            experiment, tables, root=root, device=device, deadline=deadline
                        )
                        say(f"{name}: {count} rows measured")
        except Interrupted as stop:
            stopped = stop
    if report and stored_settings(out):
        write_report(out, out_console)
    if stopped is not None:
        raise stopped
    check_trained(shares, outcome.failures, outcome.busy)
    if outcome.failures:
        reasons = listed(outcome.failures)
        raise UnfinishedError(f"all is trained, but not all could be measured:{reasons}")


@contextmanager
def _noting_failures(name: str, failures: list[str], say: Callable[[str], None]) -> Iterator[None]:
    """Go on where a measurement fails: what one cannot do is not the others' failure."""
    try:
        yield
    except NotAvailableError as reason:
        say(f"{name} is left out: {reason}")
    except Interrupted:
        raise
    except Exception as error:
        traceback.print_exc()
        failures.append(f"{name}: {type(error).__name__}: {error}")


def _measurements(experiments: Sequence[Experiment]) -> dict[str, Experiment]:
    """Return one experiment for each measurement, by its name."""
    return {e.measurement.name: e for e in experiments if e.measurement is not None}


def _measured_on(device: torch.device, tables: Tables) -> list[Row]:
    """Return the models of the store that were trained on the device, or on its kind."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return [row for row in tables.models() if row["cuda"]]
    name = environment(device)["device"]
    return [row for row in tables.models() if row["device"] == name]


def _only(texts: Sequence[str]) -> dict[str, list[str]]:
    wanted: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise ValueError(f"--only {text}: say which values, as in --only task_name=fuzzy")
        wanted.setdefault(key, []).extend(values.split(","))
    return wanted


def _listing(experiments: Sequence[Experiment]) -> Table:
    shown = table("hyla reproduce NAME ...", "name", "what it is")
    for experiment in experiments:
        shown.add_row(experiment.name, experiment.title)
    return shown


def _seconds(share: Share, device: str, measured: Sequence[Row]) -> float:
    if share.finished:
        return 0.0
    return seconds_for(share.config, device=device, done=share.step, measured=measured)


def _populations(shares: Sequence[Share], device: str, measured: Sequence[Row]) -> Table:
    shown = table(
        f"{len(shares)} populations",
        *("runs", "models", "steps", "state", "estimate", "directory"),
        numeric=("models", "steps", "estimate"),
    )
    for share in shares:
        shown.add_row(
            str(share.method),
            str(len(share.config.members)),
            f"{share.config.steps:,}",
            share.state,
            in_words(_seconds(share, device, measured)),
            share.path.name,
        )
    return shown


def _costs(
    experiments: Sequence[Experiment],
    shares: Sequence[Share],
    setting: Setting,
    effort: Effort,
    device: str,
    measured: Sequence[Row],
) -> Table:
    """Return what each experiment has and needs; what several share counts for each of them."""
    shown = table(
        f"{setting}: estimates for one population after the other on {device}",
        *("name", "models", "finished", "estimate", "what it is"),
        numeric=("models", "finished", "estimate"),
    )

    def add(name: str, own: Sequence[Share], title: str) -> None:
        if not own:  # what it may train, its measurement does
            shown.add_row(name, "-", "-", "-", title)
            return
        models = sum(len(share.config.members) for share in own)
        finished = sum(len(share.config.members) for share in own if share.finished)
        left = sum(_seconds(share, device, measured) for share in own)
        shown.add_row(name, str(models), str(finished), in_words(left), title)

    for experiment in experiments:
        keys = {method_key(method.config) for method in methods_of(experiment, setting, effort)}
        own = [share for share in shares if method_key(share.config) in keys]
        add(experiment.name, own, experiment.title)
    add("together", shares, "")
    return shown

"""Figures and tables of the paper by name: what is trained and measured for them."""

import functools
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from hyla._environment import git_commit
from hyla.lab.companies import USUAL_POPULATION, seconds_of
from hyla.lab.experiment import Experiment
from hyla.lab.measuring import NotAvailableError
from hyla.lab.methods import Effort, Method, check_only, methods_of, titled, together
from hyla.lab.plan.measure import collect_ceilings, measure
from hyla.lab.plan.pipeline import Job, Launch, Outcome, Watch
from hyla.lab.plan.shares import Share, plan
from hyla.lab.plan.workers import trim
from hyla.lab.registry import load_all
from hyla.results.conditions import Conditions
from hyla.results.origins import is_dirty
from hyla.results.runs import origin_of, read_run
from hyla.results.tables import Tables
from hyla.training import Interrupted, Member
from hyla.training.identity import method_key
from hyla.training.run.errors import RunDirectoryError

_OUT = Path("results/lab")
# Apart, as its numbers mean nothing, and git ignores it.
_SMOKE_OUT = Path("results/smoke")
_ANYWAY = "or collect with --allow-dirty, and the report marks what comes from there"


class Cost(NamedTuple):
    """What an experiment has, and needs; what several share counts for each of them."""

    name: str
    title: str
    models: int
    """None of them where a measurement trains what it needs, or nothing is trained."""
    finished: int
    seconds: float
    """Estimated, for the steps that are left, by one process, and on a GPU for
    what a measurement trains."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much of the paper to reproduce."""

    scale: str = "laptop"
    """smoke (seconds a run), laptop (minutes, two cores) or paper (the paper's own size)."""
    seeds: int | None = None
    """Seeds of each method; without it, 3; 2 at smoke scale."""
    search: bool = True
    """Search the hyper-parameters of Table A3; --no-search takes the preset's alone."""
    shorten: int = 1
    """Take one in N of the scale's steps. Such results are kept and shown apart."""
    precision: str = "float32"
    """float32, tf32 or bf16. Results of each are kept and shown apart."""


@dataclass(frozen=True, kw_only=True)
class LabLaunch(Launch):
    """Where and how they are trained: apart from runs of one's own."""

    root: Path = Path("runs/lab")
    usual_population: ClassVar[int] = USUAL_POPULATION


@dataclass(frozen=True, kw_only=True)
class Reproduction(LabLaunch, Job, Extent):
    """Experiments at a scale: their models, what is measured on them, and the store's tables."""

    names: Sequence[str]
    """Figures and tables, such as fig2c or tableA1, or all."""
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Train only models with these settings, as in {"task_name": ["fuzzy"], "seed": [0, 1]}."""
    out: Path | None = None
    """Folder of the tables, figures and the report; without it, results/smoke at smoke scale, else
    results/lab."""
    remeasure: bool = False
    """Measure on trained models again, also where nothing new was trained."""
    report: bool = True
    """Rebuild the report at the end."""
    allow_dirty: bool = False
    """Collect what was computed with uncommitted changes, too; the report marks it."""

    def __post_init__(self):
        super().__post_init__()
        check_only(self.experiments, self.conditions, self.effort)

    @functools.cached_property
    def conditions(self) -> Conditions:
        """The circumstances that its results share."""
        return Conditions(scale=self.scale, shorten=self.shorten, precision=self.precision)

    @functools.cached_property
    def effort(self) -> Effort:
        """How much of the grids is asked for."""
        return Effort(seeds=self.seeds, search=self.search, only=self.only)

    @functools.cached_property
    def experiments(self) -> list[Experiment]:
        """What is asked for by name."""
        return load_all(self.names)

    @property
    def store(self) -> Path:
        """Folder of the tables."""
        if self.out is not None:
            return self.out
        return _SMOKE_OUT if self.conditions.scale == "smoke" else _OUT

    @functools.cached_property
    def tables(self) -> Tables:
        """Where the numbers go."""
        return Tables(self.store, self.conditions)

    def asked(self) -> list[Method]:
        """Return the methods of all the experiments; models that several need are there once."""
        return together(
            titled(method, self.conditions)
            for experiment in self.experiments
            for method in methods_of(experiment, self.conditions, self.effort)
        )

    # --- what it would take ------------------------------------------------------------------

    def seconds(self, shares: Sequence[Share], device: torch.device) -> list[float]:
        """Return the estimated seconds that the training of each share still takes on a device."""
        unfinished = [share for share in shares if not share.finished]
        seconds = {
            share.path: time
            for company in self.companies(unfinished, device)
            for share, time in zip(company, seconds_of(company, device.type), strict=True)
        }
        return [0.0 if share.finished else seconds[share.path] for share in shares]

    def costs(
        self, shares: Sequence[Share], seconds: Sequence[float], device: torch.device
    ) -> list[Cost]:
        """Return what each experiment has and needs, and all of them together."""
        timed = list(zip(shares, seconds, strict=True))
        beside = {
            e.name: e.measurement.gpu_seconds(self.conditions, self.root)
            for e in self.experiments
            if device.type == "cuda" and e.measurement and e.measurement.gpu_seconds
        }

        def cost(name: str, own: Sequence[tuple[Share, float]], title: str, more: float) -> Cost:
            return Cost(
                name=name,
                title=title,
                models=sum(len(share.config.members) for share, _ in own),
                finished=sum(len(share.config.members) for share, _ in own if share.finished),
                seconds=sum(time for _, time in own) + more,
            )

        costs = []
        for experiment in self.experiments:
            methods = methods_of(experiment, self.conditions, self.effort)
            keys = {method_key(method.config) for method in methods}
            own = [(share, time) for share, time in timed if method_key(share.config) in keys]
            more = beside.get(experiment.name, 0.0)
            costs.append(cost(experiment.name, own, experiment.title, more))
        return [*costs, cost("together", timed, "", sum(beside.values()))]

    def announcements(self) -> list[str]:
        """Return what it takes that no estimate of populations has."""
        return [
            f"{experiment.name}: {experiment.measurement.announce(self.conditions, self.root)}"
            for experiment in self.experiments
            if experiment.measurement is not None and experiment.measurement.announce is not None
        ]

    def trained_by_hand(self, shares: Sequence[Share]) -> str | None:
        """Say where models lie that `hyla train` has finished, and that would be trained again."""
        if self.root != LabLaunch.root:
            return None
        elsewhere = Launch.root
        try:
            there = plan(self.methods, elsewhere, lambda config: self.usual_population)
        except RunDirectoryError:  # nothing of it is needed here
            return None
        missing = _models(share for share in shares if not share.trained)
        found = _models(share for share in there if share.trained)
        if not (count := len(missing & found)):
            return None
        return (
            f"{count} of the models to train here are finished under {elsewhere}, where hyla train "
            f"leaves them: move their folders to {self.root}, or give --root {elsewhere}"
        )

    def trim(self, finished: Sequence[Share]) -> None:
        """Trim what a kill left untrimmed, in the lab's own folder."""
        if self.root == LabLaunch.root:
            trim(finished)

    # --- collecting --------------------------------------------------------------------------

    @property
    def _any_origin(self) -> bool:
        return self.allow_dirty or self.scale == "smoke"  # there, the numbers mean nothing

    def check_source(self) -> None:
        """Raise a ValueError if results would come from source that no commit has."""
        if not self._any_origin and is_dirty(git_commit()):
            raise ValueError(
                "this source tree has uncommitted changes, so that no commit would say where the "
                "results come from: commit or stash them; of a copy whose git history is not its "
                f"own, say the commit by the environment variable HYLA_COMMIT; {_ANYWAY}"
            )

    def check_origins(self, shares: Sequence[Share]) -> None:
        """Raise a ValueError if this source, or that of a run, is what no commit has."""
        self.check_source()
        if self._any_origin:
            return
        paths = dict.fromkeys(share.path for share in shares if share.path.exists())
        dirty = [p.name for p in paths if is_dirty(origin_of(read_run(p))["git_commit"])]
        if dirty:
            named = ", ".join(dirty[:3]) + (", …" if len(dirty) > 3 else "")
            raise ValueError(
                f"{len(dirty)} runs under {self.root} were trained with uncommitted changes "
                f"({named}): move them away to train them again, {_ANYWAY}"
            )

    def collect(self, outcome: Outcome, *, trained: bool, deadline: float, watch: Watch) -> None:
        """Put finished runs into the tables, and measure what is asked for beside scores."""
        paths = dict.fromkeys(share.path for share in outcome.shares if share.finished)
        self.tables.add_runs(read_run(path) for path in paths)
        if outcome.stopped is not None:
            return
        collect_ceilings(self.experiments, self.tables, self.device)
        measuring = {e.measurement.name: e for e in self.experiments if e.measurement is not None}
        try:
            for name, experiment in measuring.items():
                with _noting_failures(name, outcome.unmeasured, watch.say):
                    count = measure(
                        experiment,
                        self.tables,
                        root=self.root,
                        device=self.device,
                        again=trained or self.remeasure,
                        any_origin=self._any_origin,
                        deadline=deadline,
                    )
                    if count is not None:
                        watch.say(f"{name}: {count} rows measured")
        except Interrupted as stop:
            outcome.stopped = stop


def _models(shares: Iterable[Share]) -> set[tuple[str, Member]]:
    """Return each model of the shares once."""
    return {
        (method_key(share.config), member) for share in shares for member in share.config.members
    }


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

"""From names of figures to populations, and from finished runs to the store's tables."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyla._environment import environment, git_commit
from hyla._errors import nearest
from hyla.lab.experiment import Experiment
from hyla.lab.grids import members
from hyla.lab.measuring import Measuring, NotAvailableError
from hyla.lab.plan.sweep import Method, Share, expand, plan
from hyla.results.ceilings import ceiling_rows
from hyla.results.runs import Row, flat_settings, read_run
from hyla.results.setting import Setting
from hyla.results.tables import Results, Tables, ceilings_of, cells_of, method_key, task_key
from hyla.training import config_from_tree, load_preset
from hyla.training.devices import resolve_device


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much of the grids to train."""

    seeds: int | None = None
    """Seeds of each method; None is the scale's own number."""
    search: bool = True
    """Search the hyper-parameters of Table A3, or take the preset's."""
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Values that settings of a run, or of its members, may have: {"task_name": ["fuzzy"]}."""

    def __post_init__(self):
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")

    def narrow(self, method: Method) -> Method | None:
        """Return the method with the members that were asked for, or None without any."""
        run = flat_settings(method.config.to_tree())
        kept = tuple(member for member in method.config.members if self._admits(run | vars(member)))
        config = dataclasses.replace(method.config, members=kept) if kept else None
        return config and dataclasses.replace(method, config=config)

    def _admits(self, settings: Mapping[str, object]) -> bool:
        return all(
            any(_reads_as(value, settings.get(key)) for value in values)
            for key, values in self.only.items()
        )


def _reads_as(text: str, value: object) -> bool:
    """Whether the text is the value as somebody may type it: 3e-4 is 0.0003."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return text == str(value)


EVERYTHING = Effort()


def methods_of(
    experiment: Experiment, setting: Setting, effort: Effort = EVERYTHING
) -> list[Method]:
    """Return the methods an experiment trains, each once; no models that `effort` leaves out."""
    methods = _methods(experiment, setting, effort.seeds, effort.search)
    return [narrowed for method in methods if (narrowed := effort.narrow(method))]


@functools.cache  # building and checking hundreds of configs takes seconds
def _methods(
    experiment: Experiment, setting: Setting, seeds: int | None, search: bool
) -> list[Method]:
    found: dict[str, Method] = {}
    for tree in experiment.sweeps(setting.scale):
        lists = members(tree["task"], setting.scale, seeds=seeds, search=search)
        for method in expand(tree | {"grid": tree["grid"] | lists}):
            config = setting.apply(method.config)
            found.setdefault(method_key(config), dataclasses.replace(method, config=config))
    return list(found.values())


def check_only(experiments: Sequence[Experiment], setting: Setting, effort: Effort) -> None:
    """Raise a ValueError for a key that is no setting of any model, or a value that none has."""
    everything = dataclasses.replace(effort, only={})
    models = [
        flat_settings(method.config.to_tree()) | vars(member)
        for experiment in experiments
        for method in methods_of(experiment, setting, everything)
        for member in method.config.members
    ]
    if effort.only and not models:
        names = " and ".join(experiment.name for experiment in experiments)
        raise ValueError(f"--only chooses among models, but {names} trains none: leave it out")
    known = {key for model in models for key in model}
    for key, wanted in effort.only.items():
        if key not in known:
            raise ValueError(f"--only: no run has a setting {key!r}{nearest(key, known)}")
        values = [model[key] for model in models if key in model]
        for text in wanted:
            if not any(_reads_as(text, value) for value in values):
                there = list(dict.fromkeys(map(str, values)))
                raise ValueError(
                    f"--only {key}={text}: no model has that{nearest(text, there)}. Of the models, "
                    f"{key} is one of {', '.join(there)}."
                )
    if effort.only and not any(methods_of(e, setting, effort) for e in experiments):
        raise ValueError("--only leaves no model: none has all of these settings at once")


def shares_of(
    experiments: Sequence[Experiment],
    setting: Setting,
    effort: Effort,
    *,
    root: Path,
    max_population: int,
) -> list[Share]:
    """Return the populations of all the experiments; models that several need are there once."""
    union: dict[str, Method] = {}
    for experiment in experiments:
        for method in methods_of(experiment, setting, effort):
            key = method_key(method.config)
            if key in union:
                known = union[key].config
                joined = dict.fromkeys((*known.members, *method.config.members))
                config = dataclasses.replace(known, members=tuple(joined))
                union[key] = dataclasses.replace(union[key], config=config)
            else:
                union[key] = titled(method, setting)
    return plan(list(union.values()), root, max_population)


def titled(method: Method, setting: Setting) -> Method:
    """Name a method by all in which it departs from the preset, not by one grid's keys."""
    config = method.config
    usual = _usual(config.task_name, setting)
    changed = {
        key: value
        for key, value in flat_settings(config.to_tree()).items()
        if value != usual[key] and key != "model.attention" and not key.startswith("evaluation.")
    }
    return dataclasses.replace(
        method, settings={config.task_name: config.model.attention} | changed
    )


@functools.cache
def _usual(task: str, setting: Setting) -> Row:
    preset = setting.apply(config_from_tree(load_preset(task, setting.scale)))
    return flat_settings(preset.to_tree())


# --- collecting ------------------------------------------------------------------------------


def collect(shares: Sequence[Share], tables: Tables) -> None:
    """Put the finished runs of the shares into the tables."""
    paths = dict.fromkeys(share.path for share in shares if share.finished)
    tables.add_runs(read_run(path) for path in paths)


def collect_ceilings(experiments: Sequence[Experiment], tables: Tables, device: str) -> None:
    """Compute the ceiling of every SRAVEN task that has a measured model and no ceiling yet."""
    known = {row["task"] for row in tables.measured("ceilings")}
    for experiment in experiments:
        for cell in results_of(experiment, tables).cells:
            task = task_key(cell.config)
            if cell.config.task_name == "sraven" and task not in known:
                known.add(task)
                rows = ceiling_rows(cell.config, device=device)
                tables.add_measured(
                    "ceilings",
                    [{"task": task, **row, **origin(device)} for row in rows],
                    key=("task", "seed"),
                )


def measure(
    experiment: Experiment,
    tables: Tables,
    *,
    root: Path,
    device: str,
    deadline: float = math.inf,
) -> int:
    """Measure what the experiment asks for beside scores; return the number of rows.

    Raises:
        NotAvailableError: the table holds models that are not here. It is left as it is, and
            nothing is measured in vain.
    """
    if experiment.measurement is None:
        return 0
    measuring = Measuring(
        setting=tables.setting,
        cells=results_of(experiment, tables).cells,
        root=root,
        device=resolve_device(device),
        deadline=deadline,
    )
    name, key = experiment.measurement.name, experiment.measurement.key
    stored = [] if key else tables.measured(name)  # what could be lost
    if measuring.cells:  # else it is about no models, or about those that it trains, as Figure 6
        _check_none_lost(stored, _models_here(measuring), root)
    rows = experiment.measurement.measure(measuring)
    if rows:
        _check_none_lost(stored, rows, root)
        whence = origin(device)
        tables.add_measured(name, [{**whence, **row} for row in rows], key=key)
    return len(rows)


def _models_here(measuring: Measuring) -> list[Row]:
    return [
        {"attention": str(cell.config.model.attention), "seed": row["seed"]}
        for cell in measuring.cells
        for row in measuring.here(cell)
    ]


def _check_none_lost(stored: Sequence[Row], rows: Sequence[Row], root: Path) -> None:
    missing = _measured_models(stored) - _measured_models(rows)
    if missing:
        raise NotAvailableError(
            f"of the models that the table holds, {len(missing)} are not under {root}: it stays. "
            "Copy their runs there and --remeasure, or move the table away"
        )


def _measured_models(rows: Sequence[Row]) -> set[tuple[Any, ...]]:
    """Return what tells the models apart that rows are about: none, if rows are about no models."""
    models = {tuple(row.get(name) for name in ("attention", "seed", "run")) for row in rows}
    return models - {(None, None, None)}


def origin(device: str) -> Row:
    """Return what a measurement was made with."""
    return {**environment(resolve_device(device)), "git_commit": git_commit()}


def results_of(experiment: Experiment, tables: Tables) -> Results:
    """Return what the tables hold for an experiment."""
    cells = cells_of([m.config for m in methods_of(experiment, tables.setting)], tables)
    return Results(
        setting=tables.setting,
        cells=cells,
        rows=tables.measured(experiment.measurement.name) if experiment.measurement else [],
        ceilings=ceilings_of(cells, tables),
    )

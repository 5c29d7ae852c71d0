"""What is asked, as methods: a sweep's grid, or the grids of an experiment.

A sweep is a YAML file::

    task: sraven
    scale: laptop
    set:                                  # over the preset, for all runs
      steps: 2000
    grid:                                 # every combination of the lists
      model.attention: [hyla, softmax, linear]
      members.learning_rate: [1e-3, 3e-4]
      members.seed: [0, 1, 2]

Combinations that differ in `members.*` alone have models of one shape on one task, and train
together. Everything else is a *method*; its members are compared with each other, and the best
learning rate, decay and warmup are chosen for each method by itself.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from hyla._errors import nearest
from hyla.lab.experiment import Experiment
from hyla.lab.grids import members
from hyla.results.conditions import Conditions
from hyla.results.runs import Row, flat_settings
from hyla.results.tables import Results, Tables, ceilings_of, cells_of
from hyla.training import TrainConfig, config_from_tree, load_preset, merge
from hyla.training.config import members_from_tree, nested, read_settings
from hyla.training.identity import OWN_PRESET, OWN_TASK, WATCHED, method_key

_KEYS = ("task", "scale", "set", "grid")
_MEMBERS = "members."
_CHOSEN_ON = ("validation", "test")
_NAMED = ("model.attention", OWN_PRESET, OWN_TASK)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Everything that is equal among models which are compared with each other."""

    settings: Mapping[str, Any]
    """The values of the grid's keys that single this method out."""
    config: TrainConfig
    """With all members that are asked for."""

    def __str__(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.settings.items()) or "all"


# --- of a sweep ------------------------------------------------------------------------------


def read_sweep(path: Path) -> list[Method]:
    """Return the methods that a sweep's YAML file describes."""
    return expand(read_settings(path, example="task: fuzzy"))


def expand(tree: Mapping[str, Any]) -> list[Method]:
    """Return the methods of a sweep, each with the members that its grid gives."""
    for key in tree:
        if key not in _KEYS:
            raise ValueError(f"{key} is not a key of a sweep{nearest(key, _KEYS)}; use {_KEYS}")
    if "task" not in tree:
        raise ValueError("task is missing: say which task the sweep is about, as in `task: fuzzy`")
    for key in ("set", "grid"):
        if not isinstance(tree.get(key, {}), Mapping):
            raise ValueError(f"{key} must map settings to values, got {tree[key]!r}")
    base = merge(load_preset(tree["task"], tree.get("scale", "laptop")), tree.get("set", {}))
    grid = {str(key): values for key, values in tree.get("grid", {}).items()}
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid: {key} must be a list of values, as in `{key}: [{values}]`")
        if key.partition(".")[0] in WATCHED and len(values) > 1:
            raise ValueError(f"grid: {key} changes no model, only how it is watched; use set")
    members = {key: grid.pop(key) for key in list(grid) if key.startswith(_MEMBERS)}
    if members and not isinstance(base["members"], Mapping):
        raise ValueError(f"set.members lists models one by one: drop {', '.join(members)} or it")
    for key, values in members.items():
        base = merge(base, nested(key, values))

    methods: dict[str, Method] = {}
    for values in product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        changed = base
        for key, value in settings.items():
            changed = merge(changed, nested(key, value))
        config = config_from_tree(changed | {"members": _distinct_members(changed["members"])})
        if not set(_CHOSEN_ON) & set(config.evaluation.splits):
            raise ValueError(
                f"evaluation.splits {config.evaluation.splits} leaves nothing to choose settings "
                f"on; add one of {_CHOSEN_ON}"
            )
        # Two spellings of one method are one method.
        methods.setdefault(method_key(config), Method(settings=settings, config=config))
    return list(methods.values())


def _distinct_members(members: Any) -> list[dict[str, Any]]:
    """Return a model that is asked for twice, perhaps spelt in two ways, once."""
    return [dataclasses.asdict(m) for m in dict.fromkeys(members_from_tree(members))]


# --- of experiments --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much of the grids to train."""

    seeds: int | None = None
    """Seeds of each method; None is the scale's own number."""
    search: bool = True
    """Search the hyper-parameters of Table A3, or take the preset's."""
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict)
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
            any(_reads_as(str(value), settings.get(key)) for value in values)
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
    experiment: Experiment, conditions: Conditions, effort: Effort = EVERYTHING
) -> list[Method]:
    """Return the methods an experiment trains, each once; no models that `effort` leaves out."""
    methods = _methods(experiment, conditions, effort.seeds, effort.search)
    return [narrowed for method in methods if (narrowed := effort.narrow(method))]


@functools.cache  # building and checking hundreds of configs takes seconds
def _methods(
    experiment: Experiment, conditions: Conditions, seeds: int | None, search: bool
) -> list[Method]:
    found: dict[str, Method] = {}
    for tree in experiment.sweeps(conditions.scale):
        lists = members(tree["task"], conditions.scale, seeds=seeds, search=search)
        for method in expand(tree | {"grid": tree["grid"] | lists}):
            config = conditions.apply(method.config)
            found.setdefault(method_key(config), dataclasses.replace(method, config=config))
    return list(found.values())


def check_only(experiments: Sequence[Experiment], conditions: Conditions, effort: Effort) -> None:
    """Raise a ValueError for a key that is no setting of any model, or a value that none has."""
    everything = dataclasses.replace(effort, only={})
    models = [
        flat_settings(method.config.to_tree()) | vars(member)
        for experiment in experiments
        for method in methods_of(experiment, conditions, everything)
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
        for text in map(str, wanted):
            if not any(_reads_as(text, value) for value in values):
                there = list(dict.fromkeys(map(str, values)))
                raise ValueError(
                    f"--only {key}={text}: no model has that{nearest(text, there)}. Of the models, "
                    f"{key} is one of {', '.join(there)}."
                )
    if effort.only and not any(methods_of(e, conditions, effort) for e in experiments):
        raise ValueError("--only leaves no model: none has all of these settings at once")


def together(methods: Iterable[Method]) -> list[Method]:
    """Return each method once, with the members of all that are it."""
    union: dict[str, Method] = {}
    for method in methods:
        key = method_key(method.config)
        known = union.setdefault(key, method)
        joined = tuple(dict.fromkeys((*known.config.members, *method.config.members)))
        if joined != known.config.members:
            config = dataclasses.replace(known.config, members=joined)
            union[key] = dataclasses.replace(known, config=config)
    return list(union.values())


def titled(method: Method, conditions: Conditions) -> Method:
    """Name a method by all in which it departs from the preset, not by one grid's keys."""
    config = method.config
    usual = _usual(config.task_name, conditions)
    changed = {
        key: value
        for key, value in flat_settings(config.to_tree()).items()
        if value != usual.get(key) and key not in _NAMED and not key.startswith("evaluation.")
    }
    return dataclasses.replace(
        method, settings={config.task_name: config.model.attention} | changed
    )


@functools.cache
def _usual(task: str, conditions: Conditions) -> Row:
    preset = conditions.apply(config_from_tree(load_preset(task, conditions.scale)))
    return flat_settings(preset.to_tree())


def results_of(experiment: Experiment, tables: Tables) -> Results:
    """Return what the tables hold for an experiment."""
    cells = cells_of([m.config for m in methods_of(experiment, tables.conditions)], tables)
    return Results(
        conditions=tables.conditions,
        cells=cells,
        rows=tables.measured(experiment.measurement.name) if experiment.measurement else [],
        ceilings=ceilings_of(cells, tables),
    )

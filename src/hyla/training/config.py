"""What a run trains: typed, hashable, and the same as a tree of plain values.

A `TrainConfig` holds everything that decides a run's numbers and nothing else; where it runs, how
often it is saved and what it prints are arguments of `train`. A task has presets of such trees;
`load_preset` returns one and `config_from_tree` checks and builds it.
"""

import copy
import dataclasses
import functools
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml

from hyla._errors import check_choice, check_positive, nearest
from hyla._plugins import PluginError
from hyla.nn import TransformerConfig
from hyla.tasks import Task, task_class
from hyla.tasks.base import check_objective
from hyla.training.backends import check_fused
from hyla.training.identity import (
    own_preset,
    own_task,
    plain_tree,
    without_own_preset,
    without_own_task,
)
from hyla.training.member import Member
from hyla.training.precision import check_precision

SCALES = ("smoke", "laptop", "paper")

USUAL_SPLITS = ("validation", "test", "ood")
"""What is scored, if the task has it and nobody says otherwise."""

DERIVED_FROM_TASK = ("input_dim", "output_dim", "sequence_length")
"""Settings of the model that follow from the task."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Which splits are scored, how often, and on how many instances."""

    splits: tuple[str, ...]
    """Splits of the task to score."""
    every: int
    """Steps between evaluations."""
    instances: int
    """Instances per split during training."""
    final_instances: int
    """Instances per split at the end."""

    def __post_init__(self):
        sizes = ("every", "instances", "final_instances")
        check_positive(**{f"evaluation.{name}": getattr(self, name) for name in sizes})

    @property
    def headline(self) -> str:
        """The split whose score says how good a model is: unseen compositions, if it has any."""
        return next((split for split in reversed(USUAL_SPLITS) if split in self.splits), "ood")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A population of models on a task."""

    task_name: str
    task: Any
    """The settings of the task, as its `config_class`."""
    model: TransformerConfig
    members: tuple[Member, ...]
    steps: int
    batch_size: int
    evaluation: Evaluation
    log_every: int
    precision: str = "float32"

    def __post_init__(self):
        check_precision(self.precision)
        check_positive(steps=self.steps, batch_size=self.batch_size, log_every=self.log_every)
        if not self.members:
            raise ValueError(
                "members must hold at least one model; give a seed (--seeds 1) and a learning rate"
            )
        for member, count in Counter(self.members).items():
            if count > 1:
                raise ValueError(f"members holds a model {count} times: {member}; once is enough")
        if self.model.inputs != "vectors":
            raise ValueError("model.inputs must be 'vectors', as the tasks give no tokens")
        task = self.build_task()
        check_objective(task.objective, type(task).__name__)
        if "train" not in task.splits:
            raise ValueError(
                f"{self.task_name} has no split 'train' to train on: its splits are {task.splits}"
            )
        for seed in {member.seed for member in self.members}:
            task.manifest(seed)  # raises if the seed's combinations cannot be split as asked
        for split in self.evaluation.splits:
            check_choice("evaluation.splits:", split, task.splits)

    def build_task(self) -> Task:
        """Return the task itself."""
        return task_class(self.task_name)(self.task)

    def check_device(self, device: torch.device) -> None:
        """Raise a ValueError if the models cannot be computed on `device`."""
        if self.model.backend == "fused":
            tokens = self.build_task().sequence_length
            check_fused(self.model, tokens, device=device, precision=self.precision)

    def to_tree(self) -> dict[str, Any]:
        """Return plain values that identify the run (and nothing that is derived)."""
        tree = plain_tree(self)
        for name in DERIVED_FROM_TASK:
            del tree["model"][name]
        # Which implementation computes does not change what is computed.
        del tree["model"]["backend"]
        return tree | own_preset(self.model.attention) | own_task(self.task_name, self.build_task())

    def __reduce__(self):
        """Pickle the task's settings by name and value: its plug-in is imported where it is read.

        Jobs of a cluster are sent pickled, and begin without a plug-in that is only a file.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _unpickled, (values | {"task": dataclasses.asdict(self.task)},)


def _unpickled(values: dict[str, Any]) -> TrainConfig:
    settings = task_class(values["task_name"]).config_class
    return TrainConfig(**values | {"task": settings(**values["task"])})


def load_preset(task: str, scale: str) -> dict[str, Any]:
    """Return the tree of a task's preset; `members` in it is a grid of lists."""
    own = _task_class(task, "task").presets
    check_choice("scale", scale, SCALES)
    if isinstance(own, Path):
        own = read_settings(own, example="smoke: {steps: 10}")
    for level, tree in own.items():
        check_choice(f"presets of {task}: scale", level, SCALES)
        _check_preset(tree, task, f"presets of {task} at {level} scale: ")
    return merge(read_preset("task", scale), _at_scale(own, scale)) | {"task_name": task}


def _check_preset(tree: Mapping[str, Any], task: str, where: str) -> None:
    """Raise a ValueError for a name that is no setting: later, nobody knows who gave it."""
    _check_names(TrainConfig, settings_by_name(tree, where.removesuffix(": ")), where)
    parts = {"task": task_class(task).config_class, "model": TransformerConfig}
    for name, kind in (parts | {"evaluation": Evaluation}).items():
        _check_names(kind, settings_by_name(tree.get(name, {}), where + name), f"{where}{name}.")


def read_preset(name: str, scale: str) -> dict[str, Any]:
    """Return the tree of a preset file at a scale."""
    text = resources.files("hyla.training.presets").joinpath(f"{name}.yaml").read_text()
    return _at_scale(_parsed(text), scale)


def _parsed(text: str) -> Any:
    """Return what YAML says, to be changed at will; the same text is parsed once."""
    return copy.deepcopy(_remembered(text))


_remembered = functools.lru_cache(maxsize=64)(yaml.safe_load)


def _at_scale(scales: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """Return a preset's tree: each scale states only where it departs from the paper."""
    return merge(scales.get("paper", {}), scales.get(scale, {}))


def _task_class(name: object, where: str) -> type[Task]:
    """Return the task of a name that stood in the setting `where`."""
    try:
        return task_class(name)
    except PluginError as error:
        raise PluginError(f"{where} {error}") from None


def read_settings(path: Path, *, example: str) -> dict[str, Any]:
    """Return the tree in a YAML file; `example` shows what a line of it may say."""
    try:
        tree = _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} must map settings to values, as in `{example}`")
    return tree


def merge(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tree` with the nested `changes` applied."""
    merged = dict(tree)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return the changes that a dotted key stands for: {"a": {"b": value}} for "a.b"."""
    first, _, rest = key.partition(".")
    return {first: nested(rest, value) if rest else value}


def expand_members(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the Cartesian product of lists of settings, as one dict per member."""
    if not grid:
        raise ValueError("members is an empty grid; give lists of settings, as in `seed: [0, 1]`")
    lists = [value if isinstance(value, list | tuple) else [value] for value in grid.values()]
    return [dict(zip(grid, values, strict=True)) for values in product(*lists)]


def config_from_tree(tree: Mapping[str, Any]) -> TrainConfig:
    """Check a tree of plain values and build the config it describes."""
    tree = dict(tree)
    kind = _task_class(tree.get("task_name"), "task_name")
    task = build_settings(kind.config_class, tree.pop("task", {}), "task")
    problem = kind(task)
    tree = without_own_task(tree, tree["task_name"], problem)
    derived = {field: getattr(problem, field) for field in DERIVED_FROM_TASK}
    model = settings_by_name(tree.pop("model", {}), "model")
    for key in derived:
        if key in model:
            raise ValueError(f"model.{key} follows from the task; leave it out")
    shape = build_settings(TransformerConfig, model | derived, "model")
    evaluation = settings_by_name(tree.get("evaluation", {}), "evaluation")
    if "splits" not in evaluation:
        evaluation["splits"] = [split for split in USUAL_SPLITS if split in problem.splits]
        if not evaluation["splits"]:
            raise ValueError(
                f"evaluation.splits: say which to score of {', '.join(problem.splits)}; "
                f"{tree['task_name']} has none of {', '.join(USUAL_SPLITS)}"
            )
    return build_settings(
        TrainConfig,
        without_own_preset(tree, shape.attention)
        | {
            "task": task,
            "model": shape,
            "members": members_from_tree(tree.get("members", ())),
            "evaluation": build_settings(Evaluation, evaluation, "evaluation"),
        },
        "",
    )


def members_from_tree(members: Any) -> tuple[Member, ...]:
    """Check and build the models of a tree's `members`: a list of them, or a grid of lists."""
    if isinstance(members, Mapping):
        members = expand_members(members)
    elif not isinstance(members, list | tuple):
        raise ValueError(f"members must be a list of models or a grid of lists, got {members!r}")
    return tuple(build_settings(Member, member, "members") for member in members)


def build_settings(cls: type, values: Mapping[str, Any], path: str) -> Any:
    """Construct a dataclass, naming the first key that is unknown, missing or of a wrong type."""
    prefix = f"{path}." if path else ""
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    _check_names(cls, settings_by_name(values, path), prefix)
    for name, spec in fields.items():
        if name not in values and spec.default is spec.default_factory is dataclasses.MISSING:
            raise ValueError(f"{prefix}{name} is missing")
    return cls(**{k: _convert(v, hints[k], prefix + k) for k, v in values.items()})


def _check_names(cls: type, values: Mapping[str, Any], prefix: str) -> None:
    names = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            raise ValueError(f"{prefix}{key} is not a setting{nearest(key, names)}")


def settings_by_name(values: Any, path: str) -> dict[str, Any]:
    """Return a copy of a tree's branch; a ValueError if it is none."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{path} must hold settings by name, got {values!r}")
    return dict(values)


def _convert(value: Any, hint: Any, path: str) -> Any:
    """Bring a YAML or command-line value to the annotated type, or say why it does not fit."""
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as text
        except ValueError:
            pass
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path} must be a list, got {value!r}")
        return tuple(_convert(item, typing.get_args(hint)[0], path) for item in value)
    simple = hint if isinstance(hint, type) and hint in (int, float, str, bool) else None
    if simple and (not isinstance(value, simple) or (simple is int and isinstance(value, bool))):
        raise ValueError(f"{path} must be {simple.__name__}, got {value!r}")
    return value

"""Command-line options made from the config dataclasses, so that no setting is written twice.

An option that is not given is None and leaves the preset's value.
"""

import ast
import dataclasses
import inspect
import os
import tempfile
import textwrap
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hyla._errors import check_choice
from hyla.attention.spec import PRESETS
from hyla.nn import TransformerConfig
from hyla.tasks import FuzzyLogicConfig, SravenConfig, task_class, task_names
from hyla.training import SCALES, Evaluation, load_preset
from hyla.training.config import DERIVED_FROM_TASK, build_settings
from hyla.training.precision import PRECISIONS


def given(options: Any) -> dict[str, Any]:
    """Return the options that were given, by name; `options` is None if there are none at all."""
    return {} if options is None else without_none(vars(options))


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in values.items() if value is not None}


def check_task(task: str) -> None:
    """Raise a ValueError for what `hyla train` does not know, language among what it does."""
    options = (*task_names(), "language")
    if not task:
        raise ValueError(
            f"say what to train on: {', '.join(options)}, or a task of your own with --plugin "
            "FILE.py; for example `hyla train fuzzy`"
        )
    check_choice("task", task, options, ", or add --plugin FILE.py of a task of your own")


def check_task_options(task: str, options: Any) -> None:
    """Raise a ValueError for a setting of another task than `task`."""
    for name in given(options):
        owners = [o for o in task_names() if name in _field_names(task_class(o).config_class)]
        if task not in owners:
            raise ValueError(
                f"--task.{name.replace('_', '-')} is a setting of the task {' and '.join(owners)}, "
                f"not of {task}"
            )


def variant_settings(task: str, variant: str, others: Collection[str]) -> dict[str, Any]:
    """Return the settings of a task's variant; `others` that were given are a ValueError."""
    if others:
        raise ValueError(
            f"--variant {variant} fixes all settings of the task: leave out "
            + ", ".join(f"--task.{name.replace('_', '-')}" for name in others)
        )
    return dataclasses.asdict(task_class(task).variant_settings(variant))


def check_model_options(options: Any, model: TransformerConfig) -> None:
    """Raise a ValueError for a setting of experts, where `model` has none."""
    for name in ("num_experts", "top_k"):
        if name in given(options) and model.feed_forward != "moe":
            raise ValueError(
                f"--model.{name.replace('_', '-')} is a setting of mixtures of experts: add "
                "--model.feed-forward moe"
            )


def check_folders(**folders: Path) -> None:
    """Raise a ValueError for the first option, by name, whose folder cannot be one."""
    for name, folder in folders.items():
        for path in (folder, *folder.parents):
            # Of os.path: pathlib's own raise where they may not look.
            if os.path.exists(path) and not os.path.isdir(path):
                raise ValueError(f"--{name} {folder}: {path} is not a directory")


def check_writable(**folders: Path) -> None:
    """Raise a ValueError for the first option, by name, in whose folder nothing can be written.

    It is tried, for permission bits do not tell all: not of a file system that is read-only, nor
    to root. Nothing is left of the trial.
    """
    check_folders(**folders)
    for name, folder in folders.items():
        existing = next(p for p in (folder, *folder.absolute().parents) if os.path.exists(p))
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise ValueError(
                f"--{name} {folder}: cannot write in {existing} ({error.strerror}); give a folder "
                "where you may write"
            ) from error


def _task_options() -> type:
    """Make the settings of all tasks into one class; `check_task_options` tells them apart."""
    fields: dict[str, Any] = {}
    for task in task_names():
        config, defaults = task_class(task).config_class, _defaults_by_scale(task)
        own = optional_fields(config, label=f"{task}: ", defaults=defaults)
        for name, field in own.items():
            fields[name] = _explained_twice(fields[name], field) if name in fields else field
    return make_options("TaskOptions", fields)


def _explained_twice(field: Any, other: Any) -> Any:
    """Return the option of two tasks, with what it means in each."""
    texts = [each.__metadata__[0].help for each in (field, other)]
    kinds = field.__origin__ | other.__origin__  # `build_settings` says which of them fits
    return Annotated[kinds, Parameter(help=" ".join(texts))]


def _defaults_by_scale(task: str) -> dict[str, str]:
    """Return the values of a task's settings in the presets, by scale where they differ."""
    kind = task_class(task).config_class
    try:
        presets = {s: build_settings(kind, load_preset(task, s)["task"], "task") for s in SCALES}
    except ValueError:  # of somebody's plug-in, whose training will say so
        return {}
    found = {}
    for name in _field_names(kind):
        values = {scale: _shown(getattr(config, name)) for scale, config in presets.items()}
        same = len(set(values.values())) == 1
        found[name] = values["paper"] if same else ", ".join(map(" ".join, values.items()))
    return found


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return "none" if text in ("", "None") else text


def _own_options(name: str, config: type) -> type:
    """Make the settings of one task into a class, with the defaults of its config."""
    defaults = {field.name: _shown(field.default) for field in dataclasses.fields(config)}
    return make_options(name, optional_fields(config, defaults=defaults))


def optional_fields(
    config: type,
    *,
    without: Sequence[str] = (),
    label: str = "",
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return name → annotated type of the config's fields, each of them optional.

    `defaults` are told in the help.
    """
    hints = typing.get_type_hints(config)
    docs = _field_docs(config)

    def help_of(name: str) -> str:
        text = label + docs.get(name, "")
        return f"{text} (default: {defaults[name]})" if name in defaults else text

    return {
        name: Annotated[hints[name] | None, Parameter(help=help_of(name))]
        for name in (field.name for field in dataclasses.fields(config))
        if name not in without
    }


def make_options(name: str, fields: dict[str, Any]) -> type:
    """Make a class of options, all None, that cyclopts turns into `--group.field`."""
    return dataclasses.make_dataclass(
        name,
        [(field, kind, dataclasses.field(default=None)) for field, kind in fields.items()],
        frozen=True,
        kw_only=True,
        # cyclopts does not look into classes of the standard library, which this would count as.
        namespace={"__module__": __name__},
    )


def _completed(names: Iterable[str]) -> Any:
    """Return a type of strings for which the tab key offers `names`.

    It takes every string: the parts that know the names answer a wrong one with the nearest, and
    attention has more, such as ``hyla.silu``. The help texts list the names themselves.
    """
    return Annotated[Literal[tuple(names)] | str, Parameter(show_choices=False, metavar="STR")]


def _field_names(config: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


def _field_docs(config: type) -> dict[str, str]:
    """Return the strings that stand under the fields of a dataclass."""
    try:
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    except (OSError, TypeError, ValueError, SyntaxError):  # it stands in no file
        return {}
    if not isinstance(definition, ast.ClassDef):
        return {}
    docs = {}
    for field, following in zip(definition.body, definition.body[1:], strict=False):
        match field, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs


if typing.TYPE_CHECKING:  # a class made at run time is no type to a type checker
    ModelOptions = TaskOptions = SravenOptions = FuzzyOptions = EvaluationOptions = object
    TaskName = AttentionName = ScaleName = PrecisionName = str
else:
    TaskName = _completed(task_names())
    AttentionName = _completed(PRESETS)
    ScaleName = _completed(SCALES)
    PrecisionName = _completed(PRECISIONS)
    # --attention has an option of its own; the tasks give vectors, so there are no tokens to tie;
    # and the backend changes no numbers.
    _WITHOUT = (*DERIVED_FROM_TASK, "attention", "inputs", "tied", "backend")
    ModelOptions = make_options(
        "ModelOptions", optional_fields(TransformerConfig, without=_WITHOUT)
    )
    TaskOptions = _task_options()
    SravenOptions = _own_options("SravenOptions", SravenConfig)
    FuzzyOptions = _own_options("FuzzyOptions", FuzzyLogicConfig)
    EvaluationOptions = make_options("EvaluationOptions", optional_fields(Evaluation))

"""The tasks by name: those of the paper, and those that others register."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import TypeVar

from hyla import _plugins
from hyla._errors import nearest
from hyla.tasks.base import Task, check_objective

_TaskT = TypeVar("_TaskT", bound=Task)

_TASKS: dict[str, type[Task]] = {}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # run directories begin with it


def register_task(name: str) -> Callable[[type[_TaskT]], type[_TaskT]]:
    """Register the decorated class as a task: `hyla train NAME` and sweeps then know it.

    See `docs/howto/my-own-task.md`.
    """

    def register(task: type[_TaskT]) -> type[_TaskT]:
        if not _NAME.fullmatch(name) or name == "language":
            raise ValueError(
                f"a task cannot be called {name!r}; use letters, digits, - and _, and another word "
                "than language, which is a command"
            )
        if not dataclasses.is_dataclass(task.config_class):
            raise ValueError(
                f"{task.__name__}.config_class must be a dataclass, got {task.config_class!r}"
            )
        objective = inspect.getattr_static(task, "objective")
        if objective is inspect.getattr_static(Task, "objective"):
            raise ValueError(
                f"{task.__name__} has no objective: give the class an `objective`, which says what "
                "is optimised and how it is scored (hyla.tasks.Objective)"
            )
        if not hasattr(objective, "__get__"):  # else what it returns may depend on settings
            check_objective(objective, task.__name__)
        known = _TASKS.get(name, task)
        # The same class again is a module, or a notebook's cell, that was run again.
        if (known.__module__, known.__qualname__) != (task.__module__, task.__qualname__):
            raise ValueError(
                f"there is a task {name!r} already, {known.__module__}.{known.__qualname__}; give "
                "yours another name"
            )
        if "title" not in vars(task):
            task.title = name
        _TASKS[name] = task
        return task

    return register


def task_names() -> tuple[str, ...]:
    """The names of all tasks."""
    _plugins.load()
    return tuple(_TASKS)


def is_own_task(name: str) -> bool:
    """Whether a task is somebody's own: of a plug-in, and not of hyla."""
    return task_class(name).__module__.partition(".")[0] != "hyla"


def task_class(name: object) -> type[Task]:
    """The task of a name; a ValueError says which there are."""
    if not isinstance(name, str) or name not in _TASKS:
        names = task_names()
        if not isinstance(name, str) or name not in names:
            raise _plugins.PluginError(
                f"{name!r} is unknown{nearest(name, names)}; choose from {', '.join(names)}, or "
                "name the plug-in that registers it (--plugin FILE.py, HYLA_PLUGINS=FILE.py, or "
                "import it)"
            )
    return _TASKS[name]

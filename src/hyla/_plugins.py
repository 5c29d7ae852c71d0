"""Plug-ins: modules that register a task, an attention preset or a rule when they are imported.

Those of installed packages are found by their entry points in the group `hyla.plugins`; others are
named, as files or modules, by the environment variable HYLA_PLUGINS, which processes that are
started from this one inherit. They are imported when a name is asked for that is not known yet, or
all names.
"""

import importlib
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

GROUP = "hyla.plugins"
VARIABLE = "HYLA_PLUGINS"

_begun: set[str] = set()  # what was imported, or is being imported
_loading = threading.RLock()


class PluginError(ValueError):
    """A plug-in that was asked for, or that registers a name, is not there or cannot be loaded."""


def ask_for(plugins: Iterable[str]) -> None:
    """Add plug-ins, files or modules, to those that this process and its children load."""
    found = _asked_for()
    for plugin in plugins:
        name = str(Path(plugin).absolute()) if plugin.endswith(".py") else plugin
        if name not in found:
            found.append(name)
    os.environ[VARIABLE] = os.pathsep.join(found)


def load() -> None:
    """Import all plug-ins that are not imported yet; other threads wait until that is done."""
    with _loading:
        _load()


def _load() -> None:
    if GROUP not in _begun:
        _begun.add(GROUP)
        for entry in metadata.entry_points(group=GROUP):
            try:
                entry.load()
            except Exception as error:  # of a package that whoever runs this need not know
                warnings.warn(
                    f"the plug-in {entry.name} ({entry.value}) is left out, for it cannot be "
                    f"imported: {type(error).__name__}: {error}",
                    stacklevel=2,
                )
    for name in _asked_for():
        if name not in _begun:
            _begun.add(name)  # before: a plug-in may ask for names itself
            try:
                _import(name)
            except BaseException as error:
                _begun.discard(name)
                if not isinstance(error, Exception) or isinstance(error, PluginError):
                    raise
                raise PluginError(
                    f"the plug-in {name} cannot be loaded{_line_of(error, name)}: "
                    f"{type(error).__name__}: {error}"
                ) from error


def place_of(error: Exception) -> str:
    """Return `` (FILE, line N)`` for an error that arose in a plug-in's file, else nothing."""
    for name in _asked_for():
        if line := _line_of(error, name):
            return f" ({name}{line})"
    return ""


def _line_of(error: Exception, file: str) -> str:
    """Say at which line of a file an error arose; of one in its syntax Python says so itself."""
    steps = traceback.extract_tb(error.__traceback__)
    lines = [step.lineno for step in steps if step.filename == file]
    return f", line {lines[-1]}" if lines else ""


def _asked_for() -> list[str]:
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def _import(name: str) -> None:
    """Import a module, or a file as a module, so that what stands beside it can be imported too."""
    if not name.endswith(".py"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # something that the module needs
            raise PluginError(
                f"there is no module {error.name!r} for the plug-in {name!r}; a file is named with "
                "its .py"
            ) from error
        return
    path = Path(name).absolute()
    if not path.is_file():
        raise PluginError(f"there is no plug-in {path}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: its neighbours hide nothing that is installed
    module = importlib.import_module(path.stem)
    if not module.__file__ or not path.samefile(module.__file__):
        raise PluginError(
            f"the plug-in {path} has the name of another module, {module.__name__}: rename it"
        )

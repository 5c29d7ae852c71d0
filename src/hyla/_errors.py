"""Checks and wordings that errors of all parts share."""

import difflib
import operator
from collections.abc import Iterable
from typing import SupportsIndex

_CLOSE = 0.6  # of 1, as difflib's own default


class LauncherError(ValueError):
    """Nothing can be launched in the way that was asked for; the message says what to do."""


class UnfinishedError(Exception):
    """Something could not be brought to its end; the message says what to do about it."""


class BusyError(Exception):
    """Other processes have in hand what is missing; the same command collects it later."""


class ExportError(Exception):
    """A program that was exported computes something else than its model."""


def nearest(name: object, options: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the option closest to `name`, or an empty string.

    Capitals make no difference; of options as close, one that begins alike is meant. `name` may be
    anything that stood where a name should: in YAML, a key can be a number or null.
    """
    wanted = str(name).lower()

    def closeness(option: str) -> tuple[float, bool]:
        ratio = difflib.SequenceMatcher(None, option.lower(), wanted).ratio()
        return ratio, option.lstrip("-")[:1].lower() == wanted.lstrip("-")[:1]

    best = max(options, key=closeness, default="")
    return f" (did you mean {best!r}?)" if best and closeness(best)[0] >= _CLOSE else ""


def check_choice(what: str, name: object, options: Iterable[str], also: str = "") -> None:
    """Raise a ValueError for a name that is no option; `also` says what else would do."""
    options = list(options)
    if name not in options:
        meant, known = nearest(name, options), ", ".join(options)
        raise ValueError(f"{what} {name!r} is unknown{meant}; choose from {known}{also}")


def install_command(extra: str) -> str:
    """Return what to type to get the optional libraries of `extra`.

    It names a copy of the repository, since no package index has hyla.
    """
    return f'pip install -e "path/to/hyla[{extra}]"'


def check_positive(**sizes: SupportsIndex) -> None:
    """Raise a ValueError naming the first size that is not a positive integer, NumPy's included."""
    for name, size in sizes.items():
        try:
            number = operator.index(size)
        except TypeError:
            raise ValueError(f"{name} must be an integer, got {size!r}") from None
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {size!r}")


def check_at_least_one(**numbers: int | None) -> None:
    """Raise a ValueError for the first option, by name, that counts something and is below 1."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {number}")


def check_max_seconds(max_seconds: float | None) -> None:
    """Raise a ValueError for a time limit that leaves no time."""
    if max_seconds is not None and not max_seconds > 0:  # also NaN
        raise ValueError(f"--max-seconds must be more than 0, got {max_seconds:g}")

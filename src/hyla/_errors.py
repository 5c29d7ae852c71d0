"""Checks and wordings that errors of all parts share."""

import difflib
from collections.abc import Iterable


def nearest(name: str, options: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the option closest to `name`, or an empty string."""
    matches = difflib.get_close_matches(name, list(options), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def check_positive(**sizes: int) -> None:
    """Raise a ValueError naming the first size that is not a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be at least 1, got {size!r}")

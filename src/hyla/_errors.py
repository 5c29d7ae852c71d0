"""Shared wording of errors."""

import difflib
from collections.abc import Iterable


def nearest(name: str, options: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the option closest to `name`, or an empty string."""
    matches = difflib.get_close_matches(name, list(options), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""

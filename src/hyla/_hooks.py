"""Hooks on modules, for as long as they are needed."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.hooks import RemovableHandle


@contextmanager
def hooks_removed(hooks: list[RemovableHandle]) -> Iterator[None]:
    """Remove the hooks in the end, including those that are added to the list until then."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

"""Results that are computed once, even if several threads ask for them at the same time."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Memo(Generic[_T]):
    """Keeps the most recently used results; an error is told to all who wait, and forgotten."""

    def __init__(self, size: int):
        self._size = size
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, Future[_T]] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], _T]) -> _T:
        """Return the result of a key, computing it if nobody has."""
        with self._lock:
            found = self._results.get(key)
            if mine := found is None:
                found = self._results[key] = Future()
                if len(self._results) > self._size:
                    self._results.popitem(last=False)
            self._results.move_to_end(key)
        if mine:
            try:
                found.set_result(compute())
            except BaseException as error:
                with self._lock:
                    self._results.pop(key, None)
                found.set_exception(error)
        return found.result()

"""Which cases of a benchmark are measured, and what becomes of those that cannot be."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

Row = dict[str, Any]
Case = TypeVar("Case")


def chosen(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """Return, for each of the texts, the case of that name, else those that have it in theirs.

    In the order of `cases`; all, if no text is given.
    """
    names = [str(case) for case in cases]
    found = [
        case
        for case, name in zip(cases, names, strict=True)
        if not only or any(text == name if text in names else text in name for text in only)
    ]
    if not found:
        there = "\n".join(names)
        raise SystemExit(f"nothing is called {' or '.join(only)}; there are\n{there}")
    return found


def check_gpu(name: str, device: torch.device) -> None:
    """Exit with a failure if the benchmark of this name is to measure GPU kernels elsewhere."""
    if device.type != "cuda":
        raise SystemExit(f"hyla bench {name} measures GPU kernels: it needs a CUDA device")


def measured(
    cases: Iterable[Case],
    rows_of: Callable[[Case], Iterable[Row]],
    described: Callable[[Case], Row],
) -> Iterator[Row]:
    """Yield the rows of each case; of one that fails, a row without figures that says why.

    What is left can still be measured then.
    """
    for case in cases:
        try:
            yield from rows_of(case)
        except torch.cuda.OutOfMemoryError:
            yield described(case) | {"note": "out of memory"}
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            yield described(case) | {"note": "failed", "error": said}


def check_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Exit with a failure if a case failed."""
    if failed := sum("error" in row for row in rows):
        raise SystemExit(f"{failed} failed: see 'error' in what was measured")

"""Live progress of a training run: a table that redraws in a terminal, plain lines elsewhere."""

import math
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_LIVE_SECONDS = 0.5  # drawing a table costs some milliseconds: about 1 % of the time
_PLAIN_SECONDS = 10.0
_RATE_WINDOW_SECONDS = 30.0
_MOST_MEMBERS_SHOWN = 12


class Progress:
    """Shows step, rates, time left, each member's loss and latest metrics, and messages.

    Metrics are scores: in the summary of a large population, higher counts as better.

    >>> with Progress("hyla", 1000, ["seed0", "seed1"]) as progress:  # doctest: +SKIP
    ...     progress.message("resumed at step 500")
    ...     progress.update(501, losses=[0.31, 0.33], metrics={"ood r2": [0.71, 0.69]})
    """

    def __init__(
        self,
        title: str,
        total_steps: int,
        member_names: Sequence[str],
        console: Console | None = None,
    ) -> None:
        """Show on `console`, by default stdout; redraw in place if that is a terminal."""
        self._title = title
        self._total_steps = total_steps
        self._members = list(member_names)
        self._console = console or Console()
        in_place = self._console.is_terminal and not self._console.is_dumb_terminal
        # Redrawn by update(), not by rich's own thread, which would take turns with the training.
        self._live = Live(console=self._console, auto_refresh=False) if in_place else None
        self._interval = _LIVE_SECONDS if in_place else _PLAIN_SECONDS
        self._step = 0
        self._losses: Sequence[float] | None = None
        self._metrics: dict[str, Sequence[float]] = {}
        self._updated_at = -math.inf
        self._next_display = -math.inf
        self._undisplayed = False
        self._samples: deque[tuple[float, int]] = deque()  # (time, step) of recent displays

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
            self._live.update(Text(f"{self._title}: starting"), refresh=True)
        elif len(self._members) <= _MOST_MEMBERS_SHOWN:
            # Once, as the key to the values of every line that follows.
            self.message(f"{self._title}: members {', '.join(self._members)}")
        else:
            self.message(f"{self._title}: {len(self._members)} members")
        return self

    def __exit__(self, *error: object) -> None:
        if self._undisplayed:
            self._display()
        if self._live:
            self._live.stop()

    def update(
        self,
        step: int,
        losses: Sequence[float] | None = None,
        metrics: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Note the state after `step`; what is not given stays. Cheap enough for every step."""
        self._step = step
        if losses is not None:
            self._losses = losses
        if metrics is not None:
            self._metrics.update(metrics)
        self._undisplayed = True
        self._updated_at = time.monotonic()
        if self._updated_at >= self._next_display:
            self._display()
            self._next_display = self._updated_at + self._interval

    def message(self, text: str) -> None:
        """Show a line that stays: a resume, a warning."""
        self._console.print(Text(text), soft_wrap=True)

    def _display(self) -> None:
        self._undisplayed = False
        self._samples.append((self._updated_at, self._step))
        while len(self._samples) > 2 and self._samples[1][0] < (
            self._updated_at - _RATE_WINDOW_SECONDS
        ):
            self._samples.popleft()
        if self._live:
            self._live.update(self._drawing(), refresh=True)
        else:
            self._console.print(Text(self._plain_line()), soft_wrap=True)

    def _speed(self) -> list[str]:
        """Return the rates and the time left, once there are two moments to compare."""
        (since, first_step), (now, step) = self._samples[0], self._samples[-1]
        if step <= first_step or now <= since:
            return []
        rate = (step - first_step) / (now - since)
        left = timedelta(seconds=round((self._total_steps - step) / rate))
        return [
            f"{_number(rate)} steps/s",
            f"{_number(rate * len(self._members))} model-steps/s",
            f"ETA {left}",
        ]

    def _columns(self) -> dict[str, Sequence[float]]:
        losses = {} if self._losses is None else {"loss": self._losses}
        return {**losses, **self._metrics}

    def _plain_line(self) -> str:
        parts = [f"{self._title}: step {self._step}/{self._total_steps}", *self._speed()]
        for name, values in self._columns().items():
            if len(self._members) <= _MOST_MEMBERS_SHOWN:
                parts.append(f"{name} {' '.join(map(_number, values))}")
            else:
                shown = " ".join(f"{row} {_number(x)}" for row, x in _summary(name, values).items())
                parts.append(f"{name} {shown}")
        return " | ".join(parts)

    def _drawing(self) -> RenderableType:
        bar = ProgressBar(total=self._total_steps, completed=self._step, width=30)
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self._title, style="bold"),
            bar,
            Text("  ".join([f"{self._step}/{self._total_steps}", *self._speed()])),
        )
        columns = self._columns()
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("")
        for name in columns:
            table.add_column(Text(name), justify="right")
        if len(self._members) <= _MOST_MEMBERS_SHOWN:
            for i, member in enumerate(self._members):
                table.add_row(Text(member), *(_number(values[i]) for values in columns.values()))
        else:
            summaries = [_summary(name, values) for name, values in columns.items()]
            for row in ("best", "median", "worst", "not finite"):
                table.add_row(row, *(_number(summary[row]) for summary in summaries))
        return Group(head, table)


def _summary(name: str, values: Sequence[float]) -> dict[str, float]:
    """Best, median and worst of the finite values, and how many are not finite."""
    finite = sorted((x for x in values if math.isfinite(x)), reverse=name != "loss")
    missing = len(values) - len(finite)
    if not finite:
        finite = [math.nan]
    return {
        "best": finite[0],
        "median": statistics.median(finite),
        "worst": finite[-1],
        "not finite": missing,
    }


def _number(x: float) -> str:
    """Four significant digits, without an exponent where the number is large."""
    return f"{x:,.0f}" if isinstance(x, int) or 1000 <= abs(x) < math.inf else f"{x:.4g}"

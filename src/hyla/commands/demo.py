"""`hyla demo`."""

import statistics
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import Progress

from hyla.attention import RECOMMENDED
from hyla.commands.shared.exits import continued_after_ctrl_c, usage_errors, write_errors
from hyla.commands.shared.options import check_writable
from hyla.commands.shared.output import BAR_WITH_ESTIMATE, Screen, score, table
from hyla.lab.demo import (
    METHODS,
    OURS,
    SEEDS,
    check_figures,
    demo_config,
    run_demo,
    verdict,
    write_results,
)
from hyla.training.devices import resolve_device

_PLAIN_SECONDS = 10.0  # between two lines where there is no terminal


@continued_after_ctrl_c()
def demo(
    *,
    root: Annotated[Path, Parameter(help="Where the runs are kept.")] = Path("runs/demo"),
    out: Annotated[Path, Parameter(help="Where the figure and the page go.")] = Path("runs/demo"),
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Parameter(help="auto takes the GPU if there is one.")
    ] = "auto",
) -> None:
    """Show the paper's effect in minutes: HYLA against softmax and linear attention.

    Each model learns fuzzy logic functions in context and is then asked for functions whose terms
    it knows but whose combination it has never seen. They train in turns: a first comparison comes
    within a minute, and improves until the end. Stopped, the same command continues; runs that are
    finished are not repeated.
    """
    with usage_errors():
        resolve_device(device)
        check_writable(root=root, out=out)
        check_figures()
    with _Watch() as watch:
        results = run_demo(root=root, device=device, watch=watch)
    numbers = ("seen combinations", "unseen combinations", "seconds")
    rows = (
        (
            result.method,
            score(statistics.fmean(result.in_distribution)),
            score(statistics.fmean(result.out_of_distribution)),
            f"{result.seconds:.0f}",
        )
        for result in results
    )
    with write_errors(out):
        picture, page = write_results(results, out)
    screen = Screen()
    title = "R² on fuzzy logic functions"
    screen.print(table(title, "attention", *numbers, numeric=numbers, rows=rows))
    screen.print(verdict(results))
    screen.say(f"Figure: {picture}   Page: {page}")


class _Watch:
    """In a terminal, a bar with the time left under a comparison that is redrawn; else, lines."""

    def __init__(self) -> None:
        self._screen = Screen()
        config = demo_config(OURS)
        self._total, self._log_every = config.steps, config.log_every
        self._steps: dict[str, int] = dict.fromkeys(METHODS, 0)
        self._compared: RenderableType = (
            f"Training {', '.join(METHODS)}, {len(SEEDS)} seeds each, in turns; recommended is "
            f'"{RECOMMENDED}". The first comparison comes within a minute; softmax learns faster, '
            "and is ahead for the first third."
        )
        self._told = time.monotonic()
        self._bar = Progress(*BAR_WITH_ESTIMATE, console=self._screen)
        self._task = self._bar.add_task("", total=len(METHODS) * self._total)
        self._live = Live(console=self._screen, transient=True)

    def __enter__(self) -> "_Watch":
        if self._screen.is_terminal:
            self._live.start()
        else:
            self._screen.print(self._compared)
        self._draw()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def stepped(self, method: str, step: int) -> None:
        """Move the bar."""
        gained = step - self._steps[method]
        self._steps[method] = max(step, self._steps[method])
        self._bar.update(self._task, completed=sum(self._steps.values()), description=method)
        if gained > self._log_every:  # an earlier call took them: they say nothing of the speed
            self._bar.reset(self._task, completed=sum(self._steps.values()))
        self._draw()
        if not self._screen.is_terminal and time.monotonic() - self._told >= _PLAIN_SECONDS:
            self._say(self._how_far(method))

    def compared(self, step: int, scores: Mapping[str, float]) -> None:
        """Show the comparison."""
        title = f"R² on unseen combinations after {step:,} of {self._total:,} steps"
        if not self._screen.is_terminal:
            numbers = ", ".join(f"{method} {score(value)}" for method, value in scores.items())
            self._say(f"{title}: {numbers}")
        row = map(score, scores.values())
        self._compared = table(title, *scores, numeric=tuple(scores), rows=[row])
        self._draw()

    def _how_far(self, method: str) -> str:
        taken = f"{method}: step {self._steps[method]:,} of {self._total:,}"
        (task,) = self._bar.tasks
        if task.finished or task.time_remaining is None:
            return taken
        return f"{taken}, about {timedelta(seconds=round(task.time_remaining))} left in all"

    def _say(self, line: str) -> None:
        self._screen.say(line)
        self._told = time.monotonic()

    def _draw(self) -> None:
        if self._live.is_started:
            self._live.update(Group(self._compared, self._bar))

"""Progress on a terminal and in a log file."""

import io
import math
import time

import pytest
from rich.console import Console

from hyla.training.run import progress as progress_module
from hyla.training.run.progress import Progress


class Clock:
    """Stands in for the time module, so that rates and intervals are exact."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, _environ={"TERM": "xterm"})


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_first_every_ten_seconds_and_last(clock: Clock) -> None:
    console = plain()
    with Progress("fuzzy", 400, ["seed0", "seed1"], console) as progress:
        for step in range(101, 401):  # resumed at 100, ten steps a second
            progress.update(step, losses=[1 / step, math.nan])
            if step == 250:
                progress.update(step, metrics={"ood r2": [0.5, 0.25]})
                progress.message("checkpoint [bold]250[/bold] saved")
            clock.now += 0.1
    assert written(console).splitlines() == [
        "fuzzy: members seed0, seed1",
        "fuzzy: step 101/400 | loss 0.009901 nan",
        "fuzzy: step 201/400 | 10 steps/s | 20 model-steps/s | ETA 0:00:20 | loss 0.004975 nan",
        "checkpoint [bold]250[/bold] saved",
        "fuzzy: step 301/400 | 10 steps/s | 20 model-steps/s | ETA 0:00:10 | loss 0.003322 nan"
        " | ood r2 0.5 0.25",
        "fuzzy: step 400/400 | 10 steps/s | 20 model-steps/s | ETA 0:00:00 | loss 0.0025 nan"
        " | ood r2 0.5 0.25",
    ]


def test_a_large_population_is_summarised() -> None:
    console = plain()
    with Progress("grid", 10, [f"m{i}" for i in range(13)], console) as progress:
        losses = [math.inf, *(float(i) for i in range(1, 13))]
        progress.update(1, losses=losses, metrics={"ood r2": [i / 12 for i in range(13)]})
    assert written(console).splitlines() == [
        "grid: 13 members",
        "grid: step 1/10 | loss best 1 median 6.5 worst 12 not finite 1"
        " | ood r2 best 1 median 0.5 worst 0 not finite 0",
    ]


def test_the_rate_forgets_the_distant_past(clock: Clock) -> None:
    console = plain()
    with Progress("run", 10_000, ["a"], console) as progress:
        progress.update(1)
        clock.now += 1000  # a slow start, compilation perhaps
        for step in range(2, 602):
            progress.update(step)
            clock.now += 0.1
    assert "| 10 steps/s | 10 model-steps/s |" in written(console).splitlines()[-1]


@pytest.mark.parametrize("members", [1, 3, 40])
def test_a_terminal_gets_a_table(clock: Clock, members: int) -> None:
    console = terminal()
    with Progress("sraven", 100, [f"seed{i}" for i in range(members)], console) as progress:
        for step in range(1, 51):
            scores = [0.25 * step] * members
            progress.update(step, losses=[2.0] * members, metrics={"ood accuracy": scores})
            clock.now += 1
        progress.message("resumed [here]")
    output = written(console)
    assert "resumed [here]" in output
    last = output[output.rindex("sraven") :]
    for part in ["50/100", "1 steps/s", f"{members} model-steps/s", "ETA 0:00:50"]:
        assert part in last
    for part in ["loss", "ood accuracy", "12.5", "median" if members > 12 else "seed0"]:
        assert part in last


def test_without_updates_nothing_breaks() -> None:
    for console in (plain(), terminal()):
        with Progress("run", 10, ["a"], console) as progress:
            progress.message("nothing to do")
        assert "nothing to do" in written(console)


def test_an_error_ends_the_display_and_passes_through() -> None:
    console = terminal()
    with pytest.raises(ZeroDivisionError), Progress("run", 10, ["a"], console) as progress:
        progress.update(1 // 0)
    assert written(console).endswith("\x1b[?25h"), "the cursor is shown again"


@pytest.mark.parametrize("make_console", [plain, terminal])
def test_an_update_that_shows_nothing_costs_microseconds(make_console) -> None:
    losses, metrics = [0.5] * 12, {"ood r2": [0.5] * 12}
    best = math.inf
    with Progress("run", 10**6, [f"seed{i}" for i in range(12)], make_console()) as progress:
        progress.update(0, losses=losses, metrics=metrics)
        for block in range(20):
            start = time.perf_counter()
            for step in range(100):
                progress.update(block * 100 + step, losses=losses, metrics=metrics)
            best = min(best, (time.perf_counter() - start) / 100)
    assert best < 20e-6

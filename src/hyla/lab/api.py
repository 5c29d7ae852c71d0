"""One call for what `hyla reproduce` and `hyla sweep` do."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hyla.lab.plan.pipeline import Job, Outcome, Watch
from hyla.lab.plan.reproduction import Reproduction
from hyla.lab.plan.sweep import Sweep
from hyla.lab.report.pages import write_all
from hyla.lab.report.sections import failures
from hyla.results.tables import stored_conditions

_PATHS = ("root", "out")


def run(
    *asked: str | Path | Mapping[str, Any],
    dry_run: bool = False,
    say: Callable[[str], None] = print,
    **options: Any,
) -> Outcome:
    """Train what is missing of what is asked for, measure, and write tables and the report.

    Args:
        asked: names of figures and tables, as `hyla reproduce` takes them; or one sweep, as
            `hyla sweep` does: a YAML file, or the tree that would be in it.
        dry_run: return what is there already, and do nothing.
        say: told what happens.
        options: the commands' own, with underscores: the fields of
            `hyla.lab.plan.reproduction.Reproduction` and of `hyla.lab.plan.sweep.Sweep`.

    Returns:
        What there is now: `rows`, one for each finished model, and `shares`, the populations.

    Raises:
        ValueError: what is asked for makes no sense.
        Interrupted: a signal came, or `max_seconds` are over; the same call continues.
        BusyError: what is missing is being trained by other processes.
        UnfinishedError: something failed; the message says what.
    """
    job = _job(asked, options)
    if dry_run:
        return Outcome(shares=job.plan())
    outcome = job.run(Watch(say))
    if outcome.ended:
        if isinstance(job, Sweep):
            for path in job.write(outcome):
                say(f"written: {path}")
        elif isinstance(job, Reproduction) and job.report and stored_conditions(job.store):
            outcome.unmeasured += failures(write_all(job.store, say))
    outcome.check()
    return outcome


def _job(asked: tuple[str | Path | Mapping[str, Any], ...], options: dict[str, Any]) -> Job:
    options |= {name: Path(options[name]) for name in _PATHS if options.get(name) is not None}
    if not asked:
        raise ValueError("say what to run: names of figures, such as 'fig2c', or a sweep")
    [first, *others] = asked
    if isinstance(first, Mapping | Path) or first.endswith((".yaml", ".yml")):
        if others:
            raise ValueError("a sweep is run by itself: call this once for each")
        return Sweep(grid=first if isinstance(first, Mapping) else Path(first), **options)
    return Reproduction(names=[str(name) for name in asked], **options)

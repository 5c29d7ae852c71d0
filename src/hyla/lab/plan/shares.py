"""Methods as populations: what is finished, what can be continued, what is new."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyla.lab.companies import Part, PopulationSize
from hyla.lab.methods import Method
from hyla.results.runs import Row, StoredRun, final_rows, read_run, read_runs
from hyla.results.scoring import can_be_scored, unscored_splits
from hyla.training import Member, TrainConfig, config_from_tree, run_path
from hyla.training.identity import method_key


@dataclass(frozen=True, kw_only=True)
class Share(Part):
    """Members of one method that are, or will be, in one run directory."""

    method: Method
    path: Path


def plan(methods: Sequence[Method], root: Path, together: PopulationSize) -> list[Share]:
    """Say, for every member of every method, in which run it is or will be trained.

    A member counts as finished if any finished run under `root` has it, whoever trained beside
    it and however it was watched; where it was scored on less than is asked for, the rest is to be
    scored. Unfinished runs are continued as they are; the rest is dealt into new runs.
    """
    stored: dict[str | None, list[StoredRun]] = {}
    for run in read_runs(root):
        stored.setdefault(run.method, []).append(run)
    return [
        share
        for method in methods
        for share in _shares(method, stored.get(method_key(method.config), []), root, together)
    ]


def finished_rows(shares: Sequence[Share]) -> list[Row]:
    """Return a row for each member of the finished shares."""
    rows = []
    for share in shares:
        if share.finished:
            run = read_run(share.path)
            for row, settings in zip(final_rows(run), run.members, strict=True):
                if Member(**settings) in share.config.members:
                    rows.append(row)
    return rows


def _shares(
    method: Method, runs: Sequence[StoredRun], root: Path, together: PopulationSize
) -> Iterator[Share]:
    asked = method.config.evaluation
    pending = dict.fromkeys(method.config.members)

    def share(
        members: Sequence[Member],
        state: str,
        path: Path | None = None,
        *,
        step: int = 0,
        of: TrainConfig = method.config,
    ) -> Share:
        for member in members:
            del pending[member]
        config = dataclasses.replace(of, members=tuple(members))
        path = path or run_path(config, root)
        return Share(method=method, config=config, path=path, state=state, step=step)

    finished = [run for run in runs if run.summary is not None]
    # First those that were scored on everything.
    for run in sorted(finished, key=lambda run: len(unscored_splits(run, asked))):
        wanted = [m for m in (Member(**settings) for settings in run.members) if m in pending]
        missing = unscored_splits(run, asked)
        if wanted and not missing:
            yield share(wanted, "finished", run.path)
        elif wanted and can_be_scored(run):
            state = f"to be scored on {', '.join(missing)}"
            yield share(wanted, state, run.path, step=method.config.steps)
    # The furthest first, where two unfinished runs have a member in common.
    unfinished = [run for run in runs if run.summary is None and run.checkpoint_step is not None]
    for run in sorted(unfinished, key=lambda run: run.checkpoint_step or 0, reverse=True):
        stored = config_from_tree(run.config)
        known = run_path(stored, root) == run.path  # else another version's, which goes its way
        if known and all(member in pending for member in stored.members):
            step = run.checkpoint_step or 0
            yield share(stored.members, f"resumable at step {step}", step=step, of=stored)
    if not pending:
        return
    size = together(dataclasses.replace(method.config, members=tuple(pending)))
    while pending:
        yield share(list(pending)[:size], "new")

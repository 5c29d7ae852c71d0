"""A grid of settings as populations to train: what is finished, what can be continued, what is new.

A sweep is a YAML file::

    task: sraven
    scale: laptop
    set:                                  # over the preset, for all runs
      steps: 2000
    grid:                                 # every combination of the lists
      model.attention: [hyla, softmax, linear]
      members.learning_rate: [1e-3, 3e-4]
      members.seed: [0, 1, 2]

Combinations that differ in `members.*` alone have models of one shape on one task, and train
together. Everything else is a *method*; its members are compared with each other, and the best
learning rate, decay and warmup are chosen for each method by itself.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hyla._errors import nearest
from hyla.results.runs import Row, StoredRun, final_rows, read_run, read_runs, shared_settings
from hyla.training import Member, TrainConfig, config_from_tree, load_preset, merge, run_path
from hyla.training.config import members_from_tree, read_settings

_KEYS = ("task", "scale", "set", "grid")
_MEMBERS = "members."
_CHOSEN_ON = ("validation", "test")


@dataclass(frozen=True, kw_only=True)
class Method:
    """Everything that is equal among models which are compared with each other."""

    settings: Mapping[str, Any]
    """The values of the grid's keys that single this method out."""
    config: TrainConfig
    """With all members that the sweep asks for."""

    def __str__(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.settings.items()) or "all"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Members of one method that are, or will be, in one run directory."""

    method: Method
    config: TrainConfig
    """With the members of this share alone, or, if finished, those of them that the sweep needs."""
    path: Path
    state: str
    """finished, new, or resumable at step n."""

    step: int = 0
    """Step of the checkpoint that training continues from."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.state == "finished"


def read_sweep(path: Path) -> list[Method]:
    """Return the methods that a sweep's YAML file describes."""
    return expand(read_settings(path, example="task: fuzzy"))


def expand(tree: Mapping[str, Any]) -> list[Method]:
    """Return the methods of a sweep, each with the members that its grid gives."""
    for key in tree:
        if key not in _KEYS:
            raise ValueError(f"{key} is not a key of a sweep{nearest(key, _KEYS)}; use {_KEYS}")
    if "task" not in tree:
        raise ValueError("task is missing: say which task the sweep is about, as in `task: fuzzy`")
    for key in ("set", "grid"):
        if not isinstance(tree.get(key, {}), Mapping):
            raise ValueError(f"{key} must map settings to values, got {tree[key]!r}")
    base = merge(load_preset(tree["task"], tree.get("scale", "laptop")), tree.get("set", {}))
    grid = {str(key): values for key, values in tree.get("grid", {}).items()}
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid: {key} must be a list of values, as in `{key}: [{values}]`")
    members = {key: grid.pop(key) for key in list(grid) if key.startswith(_MEMBERS)}
    if members and not isinstance(base["members"], Mapping):
        raise ValueError(f"set.members lists models one by one: drop {', '.join(members)} or it")
    for key, values in members.items():
        base = merge(base, _nested(key, values))

    methods: dict[str, Method] = {}
    for values in product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        changed = base
        for key, value in settings.items():
            changed = merge(changed, _nested(key, value))
        config = config_from_tree(changed | {"members": _distinct_members(changed["members"])})
        if not set(_CHOSEN_ON) & set(config.evaluation.splits):
            raise ValueError(
                f"evaluation.splits {config.evaluation.splits} leaves nothing to choose settings "
                f"on; add one of {_CHOSEN_ON}"
            )
        # Two spellings of one method are one method.
        methods.setdefault(
            shared_settings(config.to_tree()),
            Method(settings=settings, config=config),
        )
    return list(methods.values())


def plan(methods: Sequence[Method], root: Path, max_population: int) -> list[Share]:
    """Say, for every member of every method, in which run it is or will be trained.

    A member counts as finished if any finished run under `root` has it, whoever trained beside
    it. Unfinished runs are continued as they are; the rest is dealt into new runs.
    """
    if max_population < 1:
        raise ValueError(f"max_population must be at least 1, got {max_population}")
    stored: dict[str, list[StoredRun]] = {}
    for run in read_runs(root):
        stored.setdefault(shared_settings(_with_defaults(run.config)), []).append(run)
    return [
        share
        for method in methods
        for share in _shares(
            method, stored.get(shared_settings(method.config.to_tree()), []), root, max_population
        )
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
    method: Method, runs: Sequence[StoredRun], root: Path, max_population: int
) -> Iterator[Share]:
    pending = dict.fromkeys(method.config.members)

    def share(
        members: Sequence[Member], state: str, path: Path | None = None, step: int = 0
    ) -> Share:
        for member in members:
            del pending[member]
        config = dataclasses.replace(method.config, members=tuple(members))
        path = path or run_path(config, root)
        return Share(method=method, config=config, path=path, state=state, step=step)

    for run in runs:
        members = [Member(**settings) for settings in run.members]
        wanted = [member for member in members if member in pending]
        if run.summary is not None and wanted:
            yield share(wanted, "finished", run.path)
    # The furthest first, where two unfinished runs have a member in common.
    for run in sorted(runs, key=lambda run: run.checkpoint_step or 0, reverse=True):
        members = [Member(**settings) for settings in run.members]
        step = run.checkpoint_step
        if run.summary is None and step is not None and all(m in pending for m in members):
            continued = dataclasses.replace(method.config, members=tuple(members))
            if run_path(continued, root) == run.path:  # else another version's, which goes its way
                yield share(members, f"resumable at step {step}", step=step)
    while pending:
        yield share(list(pending)[:max_population], "new")


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Return a stored config as this version would write it: with settings it did not have yet."""
    try:
        return config_from_tree(config).to_tree()
    except ValueError:  # of a version that had others: it matches nothing
        return config


def _distinct_members(members: Any) -> list[dict[str, Any]]:
    """Return a model that is asked for twice, perhaps spelt in two ways, once."""
    return [dataclasses.asdict(m) for m in dict.fromkeys(members_from_tree(members))]


def _nested(key: str, value: Any) -> dict[str, Any]:
    """Return {"a": {"b": value}} for the key "a.b"."""
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value) if rest else value}

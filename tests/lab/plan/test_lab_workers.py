"""Whoever trains populations, and beside which others, one's failure is not the others'."""

import dataclasses
import math
import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hyla import lab
from hyla.lab.companies import companies
from hyla.lab.methods import expand
from hyla.lab.plan import workers
from hyla.lab.plan.reproduction import Reproduction
from hyla.lab.plan.shares import Share, plan
from hyla.lab.plan.workers import train_shares
from hyla.results.runs import read_run, read_runs
from hyla.results.trimming import drop_optimiser_state
from hyla.training import Interrupted, load_run, train, train_together
from hyla.training.run.directory import RunDirectory
from hyla.training.run.held import run_name

_TREE = {
    "task": "fuzzy",
    "scale": "smoke",
    "set": {"steps": 3},
    "grid": {"model.attention": ["hyla", "softmax", "linear"], "members.seed": [0]},
}


def _shares(root: Path, **changes) -> list[Share]:
    return plan(expand(_TREE | changes), root, together=lambda config: 8)


def _unusable(share: Share) -> Share:
    """A share whose training raises: a file lies where its directory should be."""
    share.path.parent.mkdir(parents=True, exist_ok=True)
    share.path.write_text("in the way")
    return share


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_does_not_stop_the_others(tmp_path: Path, workers: int, capfd):
    first, *others = _shares(tmp_path)
    lines: list[str] = []
    outcome = train_shares(
        [[share] for share in (_unusable(first), *others)],
        root=tmp_path,
        device="cpu",
        workers=workers,
        max_seconds=math.inf,
        say=lines.append,
    )
    [failure] = outcome.failures
    assert first.path.name in failure
    assert "not a directory" in failure
    assert outcome.busy == []
    assert [run.config["model"]["attention"] for run in read_runs(tmp_path)] == [
        "linear",
        "softmax",
    ]
    assert all(run.summary is not None for run in read_runs(tmp_path))
    assert any("population 3 of 3" in line for line in lines)


def test_a_signal_reaches_the_workers_and_they_are_continued(tmp_path: Path):
    long = _shares(tmp_path, set={"steps": 100_000})

    def terminate_once_two_train():
        # A run's first record comes before its first step.
        while sum(m.read_bytes().count(b"\n") > 1 for m in tmp_path.glob("*/metrics.jsonl")) < 2:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate_once_two_train, daemon=True).start()
    with pytest.raises(Interrupted, match="3 of 3 populations unfinished") as stop:
        train_shares(
            [[share] for share in long],
            root=tmp_path,
            device="cpu",
            workers=2,
            max_seconds=300,
            say=lambda line: None,
        )
    assert stop.value.reason == "SIGTERM"
    again = _shares(tmp_path, set={"steps": 100_000})
    assert sorted(share.step > 0 for share in again) == [False, True, True]


def test_time_is_up_before_anything_began(tmp_path: Path):
    with pytest.raises(Interrupted, match="time limit"):
        train_shares(
            [[share] for share in _shares(tmp_path)],
            root=tmp_path,
            device="cpu",
            workers=2,
            max_seconds=0,
            say=lambda line: None,
        )


# --- populations that train as one ----------------------------------------------------------------


def _train_here(companies: list[list[Share]], root: Path, max_seconds=math.inf):
    lines: list[str] = []
    outcome = train_shares(
        companies,
        root=root,
        device="cpu",
        workers=1,
        max_seconds=max_seconds,
        say=lines.append,
    )
    return outcome, lines


def test_a_company_trains_as_one_and_each_has_its_own_run(tmp_path: Path):
    outcome, lines = _train_here([_shares(tmp_path)], tmp_path)
    assert outcome.failures == outcome.busy == []
    [line] = lines
    assert line.startswith("populations 1 to 3 of 3, as one: ")
    runs = read_runs(tmp_path)
    assert [run.config["model"]["attention"] for run in runs] == ["hyla", "linear", "softmax"]
    for run in runs:
        assert run.summary is not None
        [start] = run.provenance
        assert set(start["beside"]) == {other.path.name for other in runs} - {run.path.name}
        [checkpoint] = run.path.glob("checkpoint-*.safetensors")
        assert not any("moment" in name for name in load_file(checkpoint)), "needed by nobody now"


def test_what_cannot_train_as_one_trains_one_after_the_other(tmp_path: Path, capfd):
    first, *others = _shares(tmp_path)
    outcome, lines = _train_here([[_unusable(first), *others]], tmp_path)
    assert any("not as one, but one after the other" in line for line in lines)
    [failure] = outcome.failures
    assert first.path.name in failure
    assert [run.summary is not None for run in read_runs(tmp_path)] == [True, True]


def test_what_failed_before_a_stop_is_told(tmp_path: Path, capfd, monkeypatch):
    first, second, _ = _shares(tmp_path)

    def complete(share: Share, **options) -> str:
        if share is first:
            raise RuntimeError("out of luck")
        raise Interrupted("stopped", "time limit")

    monkeypatch.setattr(workers, "complete", complete)
    lines: list[str] = []
    with pytest.raises(Interrupted) as stop:
        train_shares(
            [[first], [second]],
            root=tmp_path,
            device="cpu",
            workers=1,
            max_seconds=math.inf,
            say=lines.append,
        )
    [failure] = stop.value.failures
    assert failure.endswith("RuntimeError: out of luck")
    assert failure in lines


def test_a_company_that_was_stopped_goes_on_as_one(tmp_path: Path):
    logged = {"set": {"steps": 3, "log_every": 1}}  # each step: it may stop at the first
    configs = [share.config for share in _shares(tmp_path, **logged)]
    with pytest.raises(Interrupted):
        train_together(configs, root=tmp_path, device="cpu", until=1)
    [again] = companies(_shares(tmp_path, **logged), lambda config: 8)
    assert [share.step for share in again] == [1, 1, 1]
    with pytest.raises(Interrupted, match=r"^populations 1 to 3 of 3, as one.*time limit"):
        _train_here([again], tmp_path, max_seconds=0)
    _train_here([again], tmp_path)
    for run in read_runs(tmp_path):
        assert run.summary is not None
        assert [len(start["beside"]) for start in run.provenance] == [2, 2, 2]


@pytest.mark.parametrize("how", ["finished", "further", "busy", "damaged"])
def test_one_that_cannot_go_along_does_not_keep_the_others_from_their_end(tmp_path: Path, how: str):
    """What became of it after the plan was made."""
    logged = {"set": {"steps": 3, "log_every": 1}}
    shares = _shares(tmp_path, **logged)
    configs = [share.config for share in shares]
    first = configs[0]
    with ExitStack() as stack:
        if how == "finished":
            train(first, root=tmp_path, device="cpu")
        elif how == "busy":
            stack.enter_context(RunDirectory.open(tmp_path, run_name(first), first.to_tree()))
        elif how == "further":
            with pytest.raises(Interrupted):
                train(first, root=tmp_path, device="cpu", until=1)
        else:
            with pytest.raises(Interrupted):
                train_together(configs, root=tmp_path, device="cpu", until=1)
            [checkpoint] = shares[0].path.glob("checkpoint-*")
            checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
        outcome, lines = _train_here([shares], tmp_path)
    assert any("not as one, but one after the other" in line for line in lines)
    assert outcome.failures == []
    assert [share.config for share in outcome.busy] == ([first] if how == "busy" else [])
    finished = [run.summary is not None for run in read_runs(tmp_path)]
    assert finished == [how != "busy", True, True]


def _is_trimmed(path: Path) -> bool:
    files = list(path.glob("checkpoint-*"))
    return len(files) == 1 and not any("moment" in name for name in load_file(files[0]))


def test_what_was_killed_before_it_was_trimmed_is_trimmed_when_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    reproduction = Reproduction(names=["fig2c"], scale="smoke")
    runs = reproduction.root
    configs = [share.config for share in _shares(runs)]
    train_together(configs, root=runs, device="cpu")
    half, busy, _ = paths = [run.path for run in read_runs(runs)]
    [last] = half.glob("checkpoint-*")
    content = last.read_bytes()
    drop_optimiser_state(half)
    # One was killed when all that was left to do was to remove what is older.
    (half / "checkpoint-000001.safetensors").write_bytes(content)

    finished = _shares(runs)
    with RunDirectory.open(runs, busy.name.rpartition("-")[0], read_run(busy).config):
        reproduction.trim(finished)
    assert [_is_trimmed(path) for path in paths] == [True, False, True]
    reproduction.trim(finished)
    assert _is_trimmed(busy)
    assert load_run(busy).step == 3


def test_a_sweep_leaves_whole_what_others_have_trained(tmp_path: Path):
    [first, *_] = _shares(tmp_path)
    train(first.config, root=tmp_path, device="cpu")
    lab.run(_TREE, root=tmp_path, out=tmp_path / "out", device="cpu", say=lambda line: None)
    assert [_is_trimmed(run.path) for run in read_runs(tmp_path)] == [
        run.path != first.path for run in read_runs(tmp_path)
    ]


def test_companies_are_of_those_that_differ_in_attention_alone(tmp_path: Path):
    methods = ["hyla", "softmax", "hyla_deep", "linear", "hyla_plus_softmax"]  # deep goes alone
    grid = {"model.attention": methods, "members.seed": [0, 1]}
    shares = _shares(tmp_path, grid=grid)

    def of(most: int) -> list[list[str]]:
        found = companies(shares, lambda config: most)
        return [[str(share.config.model.attention) for share in company] for company in found]

    assert of(8) == [["hyla", "softmax", "linear", "hyla_plus_softmax"], ["hyla_deep"]]
    assert of(5) == [["hyla", "softmax"], ["hyla_deep"], ["linear", "hyla_plus_softmax"]]
    assert of(1) == [[method] for method in methods]
    # Nothing is left to train of what only lacks scores.
    last = dataclasses.replace(shares[0], step=shares[0].config.steps)
    assert companies([last, last], lambda config: 8) == [[last], [last]]
    # And what stands at another step goes its own way.
    further = dataclasses.replace(shares[1], step=1, state="resumable at step 1")
    assert companies([shares[0], further], lambda config: 8) == [[shares[0]], [further]]
    # One that has a checkpoint of its start and one that has none do not stand at the same place.
    begun = dataclasses.replace(shares[1], state="resumable at step 0")
    assert companies([shares[0], begun], lambda config: 8) == [[shares[0]], [begun]]

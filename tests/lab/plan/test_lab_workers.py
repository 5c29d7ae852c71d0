"""Several processes train what one would, and one population's failure is not the others'."""

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hyla.lab.methods import expand
from hyla.lab.plan.shares import Share, plan
from hyla.lab.plan.workers import train_shares
from hyla.results.runs import read_runs
from hyla.training import Interrupted

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
        [_unusable(first), *others],
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
            long, root=tmp_path, device="cpu", workers=2, max_seconds=300, say=lambda line: None
        )
    assert stop.value.reason == "SIGTERM"
    again = _shares(tmp_path, set={"steps": 100_000})
    assert sorted(share.step > 0 for share in again) == [False, True, True]


def test_time_is_up_before_anything_began(tmp_path: Path):
    with pytest.raises(Interrupted, match="time limit"):
        train_shares(
            _shares(tmp_path),
            root=tmp_path,
            device="cpu",
            workers=2,
            max_seconds=0,
            say=lambda line: None,
        )

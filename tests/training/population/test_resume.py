"""Stop or kill a run anywhere, start it again: it ends with the same numbers, bit for bit."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hyla.training import Interrupted, TrainConfig, train
from hyla.training.run import loop
from hyla.training.run.checkpoints.base import Checkpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.errors import RunBusyError, RunDirectoryError
from hyla.training.run.held import run_name
from hyla.training.run.stop import StopRequest
from tiny_runs import assert_same_run, final_tensors, records, run_path, tiny_config

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("uninterrupted")
    train(tiny_config(), root=root, device="cpu")
    return root


def run(root: Path, **options) -> dict:
    return train(tiny_config(), root=root, device="cpu", **options)


def stop_at(monkeypatch, *steps: int) -> None:
    """Let a stop be requested when the population has taken one of these numbers of steps."""
    from hyla.training.population.cohort import Cohort

    waiting = list(steps)
    requests: list[StopRequest] = []
    train_cohort, enter = Cohort.train, StopRequest.__enter__

    def train_and_stop(self, count):
        for _ in range(count):
            train_cohort(self, 1)
            if waiting and self.step == waiting[0]:
                waiting.pop(0)
                requests[-1].request("test")

    def enter_and_note(self):
        requests.append(self)
        return enter(self)

    monkeypatch.setattr(Cohort, "train", train_and_stop)
    monkeypatch.setattr(StopRequest, "__enter__", enter_and_note)
    monkeypatch.setattr("hyla.training.run.loop.SECONDS_BETWEEN_STOPS", 0.0)  # slices of one step


@pytest.mark.parametrize(
    "steps", [(1,), (5,), (7,), (8,), (24,), (1, 2, 3), (5, 8, 13, 16, 24)], ids=str
)
def test_a_stopped_run_continues_to_the_same_end(tmp_path, monkeypatch, uninterrupted, steps):
    stop_at(monkeypatch, *steps)
    for step in steps:
        with pytest.raises(Interrupted, match=f"stopped at step {step} of 24") as stopped:
            run(tmp_path)
        # What is evaluated at the end is not continued but done again.
        assert ("final evaluation" in str(stopped.value)) == (step == 24)
        assert final_tensors(tmp_path)["step"] == step
        assert all(record["step"] <= step for record in records(tmp_path))
    run(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


def test_a_time_limit_and_one_that_leaves_no_time_at_all(tmp_path, monkeypatch, uninterrupted):
    stop_at(monkeypatch, 8)
    with pytest.raises(Interrupted):
        run(tmp_path)
    before = records(tmp_path)
    with pytest.raises(Interrupted, match=r"stopped at step 8 of 24 \(time limit\)"):
        run(tmp_path, max_seconds=0)
    assert records(tmp_path) == before
    run(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


def stop_before_batch(monkeypatch, batch: int) -> None:
    """Let a stop be requested before the given batch of all evaluations."""
    batches = 0

    def stop_before_one(self):
        nonlocal batches
        batches += 1
        if batches == batch:
            self.stop.request("SIGTERM")
        original(self)
        assert batches < batch

    original = loop._Loop._before_batch
    monkeypatch.setattr(loop._Loop, "_before_batch", stop_before_one)


@pytest.mark.parametrize("batch", [1, 3, 5, 6])
def test_a_stop_during_an_evaluation_is_noticed_and_made_up_for(
    tmp_path, monkeypatch, uninterrupted, batch
):
    with monkeypatch.context() as patch:
        stop_before_batch(patch, batch)
        with pytest.raises(Interrupted, match="SIGTERM"):
            run(tmp_path)
    run(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


# --- crashes ------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


def crash_at(monkeypatch, where: str, call: int) -> None:
    """Crash instead of the given call of a function."""
    owner, name = {
        "log": (RunDirectory, "log"),
        "save": (Checkpoints, "save"),
        "finish": (RunDirectory, "finish"),
        "sync": (RunDirectory, "sync"),
        "rewind": (RunDirectory, "rewind"),
    }[where]
    original = getattr(owner, name)
    calls = 0

    def crash_or_call(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            raise Crash
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, crash_or_call)


@pytest.mark.parametrize("every", [0.0, 60.0], ids=["save-often", "save-at-the-end"])
@pytest.mark.parametrize(
    ("where", "call"),
    [
        ("log", 1),
        ("log", 2),
        ("log", 4),
        ("log", 9),
        ("save", 1),
        ("sync", 1),
        ("finish", 1),
        ("rewind", 1),
    ],
)
def test_a_crash_between_any_two_writes_changes_nothing(
    tmp_path, monkeypatch, uninterrupted, where, call, every
):
    monkeypatch.setattr("hyla.training.run.loop.SECONDS_BETWEEN_CHECKPOINTS", every)
    monkeypatch.setattr("hyla.training.run.loop.MOST_TIME_SAVING", math.inf)
    with monkeypatch.context() as patch:
        crash_at(patch, where, call)
        with pytest.raises(Crash):
            run(tmp_path)
    run(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


def test_a_crash_after_the_step_was_reported_whose_evaluation_was_stopped(
    tmp_path, monkeypatch, uninterrupted
):
    """The checkpoint still holds that step's losses; they count for its record alone."""
    with monkeypatch.context() as patch:
        stop_before_batch(patch, 1)
        with pytest.raises(Interrupted, match="step 8"):
            run(tmp_path)
    with monkeypatch.context() as patch:
        crash_at(patch, "log", 2)
        with pytest.raises(Crash):
            run(tmp_path)
    assert records(tmp_path)[-1]["step"] == 8
    run(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.parametrize(
    "content",
    [
        b"garbage\n" * 9,
        b"\0" * 500,
        b"garbage",
        b'{"step": 5, "loss": [1.0, 1.0]}\n',
        b"[" * 200_000,
    ],
    ids=["lines", "zeros", "line", "too-few", "deep"],
)
def test_a_damaged_log_is_noticed_and_can_be_done_without(
    tmp_path, monkeypatch, uninterrupted, capsys, content
):
    stop_at(monkeypatch, 10)
    with pytest.raises(Interrupted):
        run(tmp_path)
    log = run_path(tmp_path) / "metrics.jsonl"
    log.write_bytes(content)
    with pytest.raises(RunDirectoryError, match=r"damaged.*Restore it from a copy, or delete it"):
        run(tmp_path)
    assert log.read_bytes() == content
    log.unlink()
    run(tmp_path)
    assert "what was logged up to step 10 is not in" in " ".join(capsys.readouterr().out.split())
    assert records(tmp_path) == [r for r in records(uninterrupted) if r["step"] > 10]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path, monkeypatch, uninterrupted, capsys
):
    stop_at(monkeypatch, 10, 17)
    for _ in range(2):
        with pytest.raises(Interrupted):
            run(tmp_path)
    newest = run_path(tmp_path) / "checkpoint-000017.safetensors"
    content = newest.read_bytes()
    newest.write_bytes(content[: len(content) // 2])
    run(tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "is not used: truncated, damaged" in said
    assert "Falling back to the checkpoint of step 10" in said
    assert_same_run(tmp_path, uninterrupted)


def test_without_a_usable_checkpoint_it_starts_again(tmp_path, monkeypatch, uninterrupted):
    stop_at(monkeypatch, 10)
    with pytest.raises(Interrupted):
        run(tmp_path)
    (run_path(tmp_path) / "checkpoint-000010.safetensors").write_bytes(b"")
    run(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


# --- real signals to real processes -------------------------------------------------------------

CHILD = """
import json, sys, time
import torch
from hyla.training import Interrupted, config_from_tree, train
from hyla.training.population.cohort import Cohort
from hyla.training.run import loop
from hyla.training.run.errors import RunBusyError

tree, root, seconds_per_step = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
torch.set_num_threads(1)
loop.SECONDS_BETWEEN_CHECKPOINTS, loop.MOST_TIME_SAVING = 0.0, float("inf")
train_cohort = Cohort.train

def slowly(self, steps):
    train_cohort(self, steps)
    time.sleep(steps * seconds_per_step)

Cohort.train = slowly
try:
    train(config_from_tree(tree), root=root, device="cpu")
except Interrupted as stop:
    print(stop)
    sys.exit(75)
except RunBusyError as busy:
    print(busy)
    sys.exit(16)
"""


def start(config: TrainConfig, root: Path, *, seconds_per_step: float = 0.0) -> subprocess.Popen:
    arguments = [json.dumps(config.to_tree()), str(root), str(seconds_per_step)]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True
    )


def wait_for_records(root: Path, count: int, child: subprocess.Popen) -> None:
    """Until the run has logged more than `count` lines."""
    for _ in range(6000):
        found = list(root.glob("*/metrics.jsonl"))
        if found and found[0].read_bytes().count(b"\n") > count:
            return
        if child.poll() is not None:
            return
        time.sleep(0.01)
    pytest.fail("the child trains nothing")


@posix
def test_sigterm_saves_and_leaves_and_a_second_process_is_turned_away(tmp_path, uninterrupted):
    child = start(tiny_config(), tmp_path, seconds_per_step=0.3)
    try:
        wait_for_records(tmp_path, 1, child)  # the first is written before any step
        with pytest.raises(RunBusyError, match=f"is being trained by process {child.pid}"):
            run(tmp_path)
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 75
    assert "(SIGTERM); the same command continues from there" in output
    step = int(final_tensors(tmp_path)["step"])
    assert 5 <= step < 24
    assert not (run_path(tmp_path) / "finished.json").exists()
    run(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


@posix
def test_sigkill_at_random_moments(tmp_path):
    """A checkpoint every few milliseconds: many of the kills come while one is written."""
    config = tiny_config(steps=300, log_every=2)
    reference, root = tmp_path / "reference", tmp_path / "killed"
    train(config, root=reference, device="cpu")
    moments = random.Random()
    kills = 0
    for _ in range(3):
        before = 1 + len(records(root)) if root.exists() else 1
        child = start(config, root)
        try:
            wait_for_records(root, before, child)
            time.sleep(moments.uniform(0, 0.25))
        finally:
            child.kill()
            child.communicate()
        kills += child.returncode == -signal.SIGKILL
    assert kills > 0
    train(config, root=root, device="cpu")
    assert_same_run(root, reference)


def test_a_run_killed_before_its_first_checkpoint_says_that_it_starts_again(tmp_path, capsys):
    config = tiny_config()
    with RunDirectory.open(tmp_path, run_name(config), config.to_tree()) as killed:
        killed.record_start(torch.device("cpu"))  # and at its first step it was killed
    train(config, root=tmp_path, device="cpu")
    assert "no checkpoint was saved before: starting again from step 1" in capsys.readouterr().out


def test_a_run_that_stops_at_steps_ends_with_the_same_numbers(tmp_path, uninterrupted):
    for until in (8, 16):
        with pytest.raises(Interrupted, match=f"stopped at step {until} of 24"):
            run(tmp_path, until=until)
    run(tmp_path, until=24)
    assert_same_run(tmp_path, uninterrupted)

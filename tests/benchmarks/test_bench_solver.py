"""`hyla bench solver` at a size that takes no time: what it measures, and when it refuses to."""

import json

import pytest
import torch

from hyla.benchmarks import solver, training
from hyla.cli import main
from hyla.tasks.sraven import SravenSampler
from hyla.training import load_preset


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(solver, "INSTANCES", {"cpu": 64})
    monkeypatch.setattr(solver, "CHECKED", 2)
    monkeypatch.setattr(training, "load_preset", lambda task, scale: load_preset(task, "smoke"))


def test_solver_and_steps_are_measured_and_written(tmp_path):
    command = ["bench", "solver", "--device", "cpu", "--seconds", "0.01", "--out", str(tmp_path)]
    assert main(command) == 0
    rows = json.loads((tmp_path / "solver-cpu.json").read_text())["rows"]
    assert all(row["instances_per_second"] > 0 for row in rows)
    names = [row["what"] for row in rows]
    assert names[0] == "brute force, on the CPU"
    assert names[-2:] == ["training step, plain", "training step, unambiguous"]
    plain, unambiguous = (row["milliseconds_per_call"] for row in rows[-2:])
    assert rows[-1]["over_plain"] == f"{unambiguous / plain - 1:+.1%}"


def test_a_solver_that_disagrees_with_brute_force_is_not_timed(monkeypatch):
    monkeypatch.setattr(solver, "brute_force", lambda panels, config: {(0, 0, 0, 0): 1.0})
    with pytest.raises(RuntimeError, match="disagrees with brute force on instance 0"):
        next(solver.measure(torch.device("cpu"), 0.01))


def test_batches_that_are_ambiguous_are_not_timed(monkeypatch):
    monkeypatch.setattr(
        SravenSampler,
        "_first_unambiguous",
        lambda self, keys: torch.zeros_like(keys.first, dtype=torch.int64),
    )
    with pytest.raises(RuntimeError, match="drew an instance that the solver finds ambiguous"):
        list(solver.measure(torch.device("cpu"), 0.01))

"""When a run says that other processes are in its way."""

import os
import time

import pytest
import torch

from hyla.training.run import crowding
from hyla.training.run.crowding import Crowding


@pytest.fixture
def machine(monkeypatch):
    """Two cores and two threads, with clocks that are set by hand."""
    clocks = {"time": 0.0, "busy": 0.0, "own": 0.0, "threads": 2}
    monkeypatch.setattr(time, "monotonic", lambda: clocks["time"])
    monkeypatch.setattr(time, "process_time", lambda: clocks["own"])
    monkeypatch.setattr(crowding, "_busy_seconds", lambda: clocks["busy"])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: clocks["threads"])
    return clocks


def advance(machine, *, seconds: float = 20.0, own: float, others: float) -> None:
    machine["time"] += seconds
    machine["own"] += own * seconds
    machine["busy"] += (own + others) * seconds


def test_a_busy_neighbour_is_named_once(machine):
    watch = Crowding()
    advance(machine, own=1.9, others=0.1)
    assert watch.advice() is None
    advance(machine, own=1.0, others=0.9)
    advice = watch.advice()
    assert advice is not None
    assert "0.9 of 2 cores" in advice
    assert "OMP_NUM_THREADS=1" in advice
    advance(machine, own=1.0, others=0.9)
    assert watch.advice() is None


@pytest.mark.parametrize("change", [{"threads": 1}, {"time": -15.0}])
def test_nothing_is_said_of_one_thread_or_of_a_moment(machine, change: dict[str, float]):
    watch = Crowding()
    advance(machine, own=1.0, others=0.9)
    for name, value in change.items():
        machine[name] = value if name == "threads" else machine[name] + value
    assert watch.advice() is None


def test_a_neighbour_on_a_free_core_is_not_in_the_way(machine, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    watch = Crowding()
    advance(machine, own=2.0, others=1.5)
    assert watch.advice() is None


def test_elsewhere_than_on_linux_nothing_is_said(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(crowding, "_STATISTICS", tmp_path / "none")
    watch = Crowding()
    advance(machine, own=1.0, others=0.9)
    assert watch.advice() is None


@pytest.mark.skipif(not crowding._STATISTICS.exists(), reason="needs Linux")
def test_this_process_is_among_what_the_machine_computes():
    busy, own = crowding._busy_seconds(), time.process_time()
    while time.process_time() - own < 0.2:
        pass
    assert crowding._busy_seconds() - busy > 0.1

"""How a run makes room for other processes on its cores."""

import os
import time

import pytest
import torch

from hyla.training.run import crowding
from hyla.training.run.crowding import Crowding


class Machine:
    """Some cores and two threads, with clocks that are set by hand."""

    def __init__(self, cores: int = 2):
        self.time, self.busy, self.own, self.threads, self.cores = 0.0, 0.0, 0.0, 2, cores
        self.said: list[str] = []

    def advance(self, watch: Crowding, *, others: float, seconds: float = 20.0) -> None:
        own = min(self.threads, self.cores - others)
        self.time += seconds
        self.own += own * seconds
        self.busy += (own + others) * seconds
        watch.look()


@pytest.fixture
def machine(monkeypatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(time, "monotonic", lambda: machine.time)
    monkeypatch.setattr(time, "process_time", lambda: machine.own)
    monkeypatch.setattr(crowding, "_busy_seconds", lambda: machine.busy)
    monkeypatch.setattr(os, "cpu_count", lambda: machine.cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: machine.threads)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: setattr(machine, "threads", n))
    return machine


def test_a_thread_is_given_up_beside_a_busy_neighbour_and_taken_back(machine: Machine):
    with Crowding(machine.said.append) as watch:
        machine.advance(watch, others=0.1)
        assert (machine.threads, machine.said) == (2, [])
        machine.advance(watch, others=0.9)
        assert machine.threads == 1
        assert "0.9 of 2 cores busy: training with 1 of 2 threads" in machine.said[-1]
        machine.advance(watch, others=0.9)
        machine.advance(watch, others=0.0)
        assert machine.threads == 1  # not at once
        machine.advance(watch, others=0.0)
        assert machine.threads == 2
        assert "free again: training with 2 of 2 threads" in machine.said[-1]
        assert len(machine.said) == 2


def test_a_neighbour_who_comes_and_goes_is_waited_for_longer_each_time(machine: Machine):
    watch, changes = Crowding(machine.said.append), []
    for _ in range(4):
        machine.advance(watch, others=0.9)
        looks = 0
        while machine.threads == 1:
            machine.advance(watch, others=0.0)
            looks += 1
        changes.append(looks)
    assert changes == [2, 4, 8, 16]


def test_the_threads_are_given_back_at_the_end(machine: Machine):
    with Crowding(machine.said.append) as watch:
        machine.advance(watch, others=0.9)
        assert machine.threads == 1
    assert machine.threads == 2


def test_a_moment_is_too_short_to_judge_by(machine: Machine):
    machine.advance(Crowding(machine.said.append), others=0.9, seconds=5.0)
    assert (machine.threads, machine.said) == (2, [])


def test_a_neighbour_on_a_free_core_is_not_in_the_way(machine: Machine):
    machine.cores = 4
    machine.advance(Crowding(machine.said.append), others=1.5)
    assert (machine.threads, machine.said) == (2, [])


def test_elsewhere_than_on_linux_threads_stay(machine: Machine, monkeypatch, tmp_path):
    monkeypatch.setattr(crowding, "_STATISTICS", tmp_path / "none")
    machine.advance(Crowding(machine.said.append), others=0.9)
    assert (machine.threads, machine.said) == (2, [])


@pytest.mark.skipif(not crowding._STATISTICS.exists(), reason="needs Linux")
def test_this_process_is_among_what_the_machine_computes():
    busy, own = crowding._busy_seconds(), time.process_time()
    while time.process_time() - own < 0.2:
        pass
    assert crowding._busy_seconds() - busy > 0.1

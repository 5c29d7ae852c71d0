"""How many models train together: what is measured, when, and that it is measured once."""

import time
from pathlib import Path

import pytest
import torch

from hyla.cli import main
from hyla.lab.plan import population_size
from hyla.lab.plan.pipeline import Outcome, Watch
from hyla.lab.plan.population_size import measured_size
from hyla.lab.plan.reproduction import Reproduction
from hyla.lab.plan.sweep import Sweep
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import throughput
from hyla.training.population.throughput import fastest_size

GIB = 2**30
CUDA = torch.device("cuda")


def config(members: int = 100, **changes):
    changes = {"members": {"seed": list(range(members))}, "steps": 100_000, **changes}
    return config_from_tree(merge(load_preset("fuzzy", "smoke"), changes))


class Gpu:
    """A GPU of so much memory, on which populations of any size are as fast as is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rates: dict[int, float], memory: int):
        self.rates, self.tried = rates, []
        self.total_memory = memory
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: self)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
        monkeypatch.setattr(throughput, "free_memory", lambda: None)
        monkeypatch.setattr(throughput, "_tried", self.measure)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/nowhere")

    def measure(self, config, size: int, device) -> tuple[float, int]:
        self.tried.append(size)
        if size * GIB > self.total_memory:
            raise torch.cuda.OutOfMemoryError
        return self.rates[size], size * GIB


@pytest.mark.parametrize(
    ("rates", "memory", "members", "best", "tried"),
    [
        ({12: 100, 24: 120, 48: 121}, 1000, 100, 24, [12, 24, 48]),  # no longer faster
        ({12: 100, 24: 120, 48: 140}, 1000, 60, 48, [12, 24, 48]),  # no more are wanted
        ({12: 100, 24: 120}, 40, 100, 24, [12, 24]),  # twice as many would not fit
        ({12: 100, 6: 104}, 20, 100, 12, [12, 6]),  # nor here; half as many are hardly faster
        ({12: 100, 24: 90, 6: 120, 3: 125}, 1000, 100, 6, [12, 24, 6, 3]),  # a wide model
        ({3: 100, 1: 101}, 5, 100, 3, [12, 6, 3, 1]),  # neither twelve nor six fit
    ],
)
def test_members_are_doubled_or_halved_as_long_as_it_pays(
    monkeypatch, rates, memory, members, best, tried
):
    gpu, said = Gpu(monkeypatch, rates, memory * GIB), []
    assert fastest_size(config(members), CUDA, said.append) == best
    assert gpu.tried == tried
    assert len(said) == len(tried)


def test_a_shape_is_measured_once(monkeypatch, tmp_path: Path):
    gpu, said = Gpu(monkeypatch, {6: 90, 12: 100, 24: 101}, 1000 * GIB), []
    assert measured_size(config(), tmp_path, CUDA, None) is None
    assert gpu.tried == []  # nobody asked for it
    assert measured_size(config(), tmp_path, CUDA, said.append) == 12
    assert gpu.tried == [12, 24, 6]
    longer_with_others = config(members=50, steps=200_000)
    assert measured_size(longer_with_others, tmp_path, CUDA, None) == 12
    assert gpu.tried == [12, 24, 6]
    wider = config(model={"width_factor": 2})
    assert measured_size(wider, tmp_path, CUDA, said.append) == 12
    assert gpu.tried == [12, 24, 6, 12, 24, 6]


@pytest.mark.parametrize("short", [{"members": 12}, {"steps": 100}])
def test_what_is_soon_trained_is_not_measured(monkeypatch, tmp_path: Path, short):
    gpu = Gpu(monkeypatch, {}, 1000 * GIB)
    assert measured_size(config(**short), tmp_path, CUDA, print) is None
    assert gpu.tried == []


def test_the_plan_measures_only_when_it_is_told_to(monkeypatch, tmp_path: Path):
    Gpu(monkeypatch, {6: 90, 12: 100, 24: 101}, 1000 * GIB)
    monkeypatch.setattr(population_size, "WORTH_MEASURING", 1)
    grid = {"task": "fuzzy", "scale": "smoke", "grid": {"members.seed": list(range(20))}}

    def sizes(job: Sweep, *measuring) -> list[int]:
        return [len(share.config.members) for share in job.plan(*measuring)]

    job = Sweep(grid=grid, root=tmp_path, device="cuda")
    assert sizes(job) == [20]
    assert sizes(Sweep(grid=grid, root=tmp_path, max_population=8), print) == [8, 8, 4]
    assert sizes(Sweep(grid=grid, root=tmp_path, device="cpu"), print) == [20]
    assert sizes(job, print) == [12, 8]
    assert sizes(job) == [12, 8]


def test_reproduce_trains_as_many_together_as_were_measured(monkeypatch, tmp_path: Path, capsys):
    Gpu(monkeypatch, {6: 90, 12: 100, 24: 101}, 1000 * GIB)
    monkeypatch.setattr(population_size, "WORTH_MEASURING", 1)
    planned: list[int] = []

    def run(job: Reproduction, watch, shares) -> Outcome:
        planned.extend(len(share.config.members) for share in shares)
        return Outcome(shares=[], submitted=True)

    monkeypatch.setattr(Reproduction, "run", run)
    monkeypatch.setattr(Reproduction, "check_origins", lambda job, shares: None)
    folders = ["--root", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    only = ["--only", "model.attention=hyla"]
    arguments = ["reproduce", "fig2c", "--scale", "smoke", "--seeds", "20", *only, *folders]
    main([*arguments, "--dry-run"])
    assert "measuring how many" not in capsys.readouterr().out
    main(arguments)
    assert "measuring how many" in capsys.readouterr().out
    assert max(planned) == 12


def test_an_error_while_measuring_is_not_the_users(monkeypatch, tmp_path: Path):
    Gpu(monkeypatch, {}, 1000 * GIB)
    monkeypatch.setattr(population_size, "WORTH_MEASURING", 1)

    def broken(*args):
        raise ValueError("of the computation")

    monkeypatch.setattr(throughput, "_tried", broken)
    folders = ["--root", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    with pytest.raises(ValueError, match="of the computation"):
        main(["reproduce", "fig2c", "--scale", "smoke", "--seeds", "20", *folders])


def test_what_measuring_takes_counts(monkeypatch, tmp_path: Path):
    grid = {"task": "fuzzy", "scale": "smoke", "grid": {"members.seed": [0]}}
    job = Sweep(grid=grid, root=tmp_path, device="cpu", max_seconds=100)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 101)
    assert job.run(Watch(lambda line: None), job.plan(print)).stopped is not None

"""Sweeps on a real Slurm end with the numbers of the same sweeps on this machine."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_cluster import slurm_cluster, why_unavailable

from hyla.cli import main
from hyla.commands.shared.exits import FAILURE
from hyla.results.runs import StoredRun, read_runs

_SWEEP = """
task: fuzzy
scale: smoke
set: {{steps: {steps}, evaluation: {{every: 500}}}}
grid:
  model.attention: [hyla, softmax]
  members.seed: [0, 1]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    with slurm_cluster() as environment:
        yield environment


@pytest.fixture(autouse=True)
def _use_cluster(cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_CONF", cluster["SLURM_CONF"])
    # Sums are taken in another order by another number of threads; the tests run on one.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_array_gives_the_numbers_of_the_local_launcher(tmp_path: Path, capsys):
    grid = _write_sweep(tmp_path, steps=30)
    slurm = ("--launcher", "slurm", "--slurm.cpus-per-task", "1")
    assert main(["sweep", str(grid), *_folders(tmp_path / "slurm"), *slurm]) == 0
    assert "2 finished" in capsys.readouterr().out
    assert main(["sweep", str(grid), *_folders(tmp_path / "local")]) == 0
    assert _results(tmp_path / "slurm") == _results(tmp_path / "local")
    for name in ("grid.csv", "grid.parquet"):
        assert (tmp_path / "slurm" / name).exists()


def test_figures_are_reproduced_on_the_cluster(tmp_path: Path, capsys):
    cut = ("--scale", "smoke", "--seeds", "1", "--no-search", "--no-report", "--device", "cpu")
    only = ("--only", "task.sequence_length=8", "task.held_out_fraction=0.3")
    slurm = ("--launcher", "slurm", "--slurm.cpus-per-task", "1")
    assert main(["reproduce", "fig2c", *cut, *only, *_folders(tmp_path / "slurm"), *slurm]) == 0
    assert "3 finished" in capsys.readouterr().out
    assert main(["reproduce", "fig2c", *cut, *only, *_folders(tmp_path / "local")]) == 0
    assert _results(tmp_path / "slurm", runs=3) == _results(tmp_path / "local", runs=3)
    assert (tmp_path / "slurm" / "smoke" / "models-fuzzy.csv").exists()


def test_preempted_jobs_continue_where_they_were(tmp_path: Path, capsys):
    steps = 1000
    grid = _write_sweep(tmp_path, steps=steps)
    command = ["sweep", str(grid), *_folders(tmp_path / "slurm")]
    command += ["--launcher", "slurm", "--slurm.cpus-per-task", "1", "--slurm.time", "60"]
    assert main([*command, "--no-wait"]) == 0
    submitted = re.search(r"Slurm job (\d+)", capsys.readouterr().out)
    assert submitted is not None
    runs = tmp_path / "slurm" / "runs"
    # One is announced by submitit's signal, after which the job requeues itself; the other comes
    # from Slurm, which terminates the job and requeues it.
    for run, *preempt in (
        ("fuzzy-hyla-*", "scancel", "--signal=USR2", f"{submitted[1]}_0"),
        ("fuzzy-softmax-*", "scontrol", "requeue", f"{submitted[1]}_1"),
    ):
        # A run's first record comes before its first step.
        _wait_for(
            lambda run=run: any(
                p.read_bytes().count(b"\n") > 1 for p in runs.glob(f"{run}/metrics.jsonl")
            )
        )
        subprocess.run(preempt, check=True)
    _wait_for(lambda: all(run.checkpoint_step is not None for run in read_runs(runs)))
    interrupted_at = [run.checkpoint_step for run in read_runs(runs)]
    assert all(0 < step < steps for step in interrupted_at if step is not None)

    _wait_for(lambda: all(run.summary is not None for run in read_runs(runs)))
    assert [len(run.provenance) for run in read_runs(runs)] == [2, 2]  # each was started twice
    assert main(command) == 0  # collects, and submits nothing
    assert "submitted" not in capsys.readouterr().out
    assert main(["sweep", str(grid), *_folders(tmp_path / "local")]) == 0
    assert _results(tmp_path / "slurm") == _results(tmp_path / "local")


def test_what_is_in_the_queue_is_not_submitted_again(tmp_path: Path, capsys):
    grid = _write_sweep(tmp_path, steps=300)
    command = ["sweep", str(grid), *_folders(tmp_path / "slurm")]
    command += ["--launcher", "slurm", "--slurm.cpus-per-task", "1"]
    assert main([*command, "--no-wait"]) == 0
    said = capsys.readouterr().out
    first = re.search(r"submitted 2 populations: Slurm job (\d+);", said)
    assert first is not None
    assert main(command) == 0  # waits for those, and collects
    said = capsys.readouterr().out
    assert f"2 are in the queue already: Slurm job {first[1]};" in said
    assert "submitted" not in said
    assert all(len(run.provenance) == 1 for run in read_runs(tmp_path / "slurm" / "runs"))


def test_nothing_is_submitted_when_the_queue_is_not_known(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    silent = tmp_path / "bin" / "squeue"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\necho no controller today >&2\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", str(silent.parent), prepend=os.pathsep)
    command = ["sweep", str(_write_sweep(tmp_path, steps=30)), *_folders(tmp_path)]
    assert main([*command, "--launcher", "slurm", "--no-wait"]) == 2
    assert "(no controller today); nothing was submitted" in capsys.readouterr().err
    assert not list((tmp_path / "runs" / "slurm").glob("*.sh"))


@pytest.mark.parametrize("content", ['{"fuzzy-hyla-01', "[]", '{"fuzzy-hyla-01": []}'])
def test_a_damaged_record_of_the_queue_is_named(tmp_path: Path, capsys, content: str):
    record = tmp_path / "runs" / "slurm" / "populations.json"
    record.parent.mkdir(parents=True)
    record.write_text(content)
    command = ["sweep", str(_write_sweep(tmp_path, steps=30)), *_folders(tmp_path)]
    assert main([*command, "--launcher", "slurm", "--no-wait"]) == FAILURE
    said = capsys.readouterr().err
    assert f"{record} is damaged" in said
    assert "delete it and run this again" in said
    assert not list(record.parent.glob("*.sh"))


def _write_sweep(folder: Path, *, steps: int) -> Path:
    grid = folder / "grid.yaml"
    grid.write_text(_SWEEP.format(steps=steps))
    return grid


def _folders(folder: Path) -> list[str]:
    return ["--root", str(folder / "runs"), "--out", str(folder)]


def _results(folder: Path, runs: int = 2) -> dict[str, object]:
    def results(run: StoredRun) -> object:
        assert run.summary is not None
        return run.summary["members"]

    found = {run.path.name: results(run) for run in read_runs(folder / "runs")}
    assert len(found) == runs
    return found


def _wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

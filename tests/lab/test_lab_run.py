"""`hyla.lab.run` does what the commands do, and trains nothing that is there already."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pandas
import pytest

from hyla import lab
from hyla.cli import main
from hyla.lab.methods import expand, methods_of
from hyla.lab.plan.pipeline import Outcome
from hyla.lab.registry import load
from hyla.results.conditions import Conditions
from hyla.results.csv_table import read_csv
from hyla.results.runs import read_runs
from hyla.training import Interrupted, Population, train

_GRID: dict[str, Any] = {
    "task": "fuzzy",
    "scale": "smoke",
    "set": {"steps": 4, "evaluation": {"splits": ["validation", "ood"], "final_instances": 64}},
    "grid": {"members.seed": [0, 1], "members.learning_rate": [1e-3, 3e-3]},
}
_SPLITS = ["validation", "ood", "test", "unknown_terms"]
# What of a row says where, when and how fast, or how it was watched.
_PLACE = ("run", "seconds", "evaluation.splits", "evaluation.final_instances")


def _watched(**evaluation: Any) -> dict[str, Any]:
    watched = {**_GRID["set"]["evaluation"], **evaluation}
    return _GRID | {"set": _GRID["set"] | {"evaluation": watched}}


def _run(folder: Path, *asked: Any, **options: Any) -> Outcome:
    folders = {"root": folder / "runs", "out": folder / "out", "device": "cpu"}
    return lab.run(*asked, **(folders | options))


def _numbers(outcome: Outcome) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in _PLACE} for row in outcome.rows]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch):
    def refuse(population: Population, steps: int):
        raise AssertionError("a step was taken")

    def forbid() -> None:
        monkeypatch.setattr(Population, "train", refuse)

    yield forbid
    monkeypatch.undo()


# --- as the commands -----------------------------------------------------------------------------


def test_a_sweep_is_that_of_the_command(tmp_path: Path):
    said: list[str] = []
    [planned] = _run(tmp_path, _GRID, dry_run=True).shares
    assert planned.state == "new"
    assert not (tmp_path / "runs").exists()
    outcome = _run(tmp_path, _GRID, say=said.append)
    assert said[0] == "population 1 of 1: all (new)"
    assert len(outcome.rows) == 4
    assert sum(row["picked"] for row in outcome.rows) == 2

    grid = tmp_path / "sweep.yaml"
    grid.write_text(json.dumps(_GRID))  # which YAML is, too
    folders = ("--root", str(tmp_path / "command"), "--out", str(tmp_path / "other"))
    assert main(["sweep", str(grid), *folders, "--device", "cpu", "--workers", "1"]) == 0
    ours, theirs = (
        pandas.read_csv(tmp_path / out / "sweep.csv").drop(columns="seconds")
        for out in ("out", "other")
    )
    pandas.testing.assert_frame_equal(ours, theirs)
    assert _run(tmp_path, grid).rows == _run(tmp_path, str(grid)).rows == outcome.rows


def test_a_figure_is_that_of_the_command(tmp_path: Path, capsys):
    options = {"scale": "smoke", "seeds": 1, "search": False, "shorten": 10, "report": False}
    only = {"model.attention": ["hyla"], "task.held_out_fraction": [0.3]}
    only |= {"task.sequence_length": [8]}
    outcome = _run(tmp_path, "fig2c", **options, only=only)
    command = ["reproduce", "fig2c", "--scale", "smoke", "--seeds", "1", "--no-search"]
    command += ["--shorten", "10", "--no-report", "--device", "cpu", "--only"]
    command += ["model.attention=hyla", "task.held_out_fraction=0.3", "task.sequence_length=8"]
    folders = ["--root", str(tmp_path / "command"), "--out", str(tmp_path / "other")]
    assert main([*command, *folders]) == 0
    [row], [other] = (
        read_csv(tmp_path / out / "smoke-short10" / "models-fuzzy.csv") for out in ("out", "other")
    )
    assert row | {"seconds": 0} == other | {"seconds": 0}
    [found] = outcome.rows
    assert found["ood/r2"] == row["ood/r2"]


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        ((), {}, "say what to run"),
        ((_GRID, _GRID), {}, "by itself"),
        (("fig9",), {}, "not a figure or table"),
        (("fig2c",), {"only": {"seed": [7]}}, "no model has that"),
        ((_GRID,), {"workers": 0}, "at least 1"),
        ((_GRID,), {"launcher": "cloud"}, "launcher must be 'local' or 'slurm'"),
        ((_GRID | {"grid": {"log_every": [1, 2]}},), {}, "only how it is watched"),
    ],
)
def test_mistakes_are_answered(asked: tuple[Any, ...], options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        lab.run(*asked, **options)


# --- how a run is watched does not change what it computes ---------------------------------------


@pytest.mark.parametrize("changes", [{"splits": _SPLITS}, {"final_instances": 600}])
def test_what_was_not_scored_is_scored_and_not_trained_again(tmp_path: Path, no_training, changes):
    fewer, more = _watched(), _watched(**changes)
    from_the_start = _run(tmp_path / "other", more)
    _run(tmp_path, fewer)
    [path] = (tmp_path / "runs").glob("*/config.json")
    config = path.read_bytes()

    no_training()
    [planned] = _run(tmp_path, more, dry_run=True).shares
    assert planned.state.startswith("to be scored on ")
    outcome = _run(tmp_path, more)
    assert _numbers(outcome) == _numbers(from_the_start)
    for name in ("evaluation.splits", "evaluation.final_instances"):
        assert outcome.rows[0][name] == from_the_start.rows[0][name]

    # It is the same run, which both sweeps are now content with.
    [run] = read_runs(tmp_path / "runs")
    assert path.read_bytes() == config
    assert len(run.provenance) == 2
    for grid in (fewer, more):
        [share] = _run(tmp_path, grid).shares
        assert share.finished


def test_a_figure_takes_models_that_were_scored_on_less(tmp_path: Path, no_training):
    [method, *_] = methods_of(load("fig2c"), Conditions(scale="smoke", shorten=10))
    evaluation = dataclasses.replace(method.config.evaluation, splits=("validation",), every=2)
    config = dataclasses.replace(method.config, evaluation=evaluation)
    train(config, root=tmp_path / "runs", device="cpu")
    no_training()
    attention, length = config.model.attention, config.task.sequence_length
    only = {"model.attention": [attention], "task.sequence_length": [length]}
    only |= {"task.held_out_fraction": [config.task.held_out_fraction]}
    _run(tmp_path, "fig2c", scale="smoke", shorten=10, only=only, report=False)
    rows = read_csv(tmp_path / "out" / "smoke-short10" / "models-fuzzy.csv")
    assert len(rows) == len(config.members)
    assert all(row[f"{split}/r2"] is not None for row in rows for split in _SPLITS)


def test_models_that_were_scored_on_different_splits_are_compared_by_what_all_have(tmp_path: Path):
    _run(tmp_path, _watched(splits=_SPLITS))
    wider = _watched(splits=["test"]) | {"grid": {"members.seed": [0, 1, 2]}}
    outcome = _run(tmp_path, wider)
    assert [("validation/r2" in row, row["picked"]) for row in outcome.rows].count(
        (True, True)
    ) == 2
    assert sum(row["picked"] for row in outcome.rows) == 3
    (tmp_path / "grid.yaml").write_text(json.dumps(wider))
    folders = ("--root", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    assert main(["sweep", str(tmp_path / "grid.yaml"), *folders, "--device", "cpu"]) == 0


def test_an_unfinished_run_is_continued_however_it_was_watched(tmp_path: Path):
    slow = _GRID | {"set": _GRID["set"] | {"steps": 300}}
    other = slow | {"set": slow["set"] | {"log_every": 7, "evaluation": {"splits": _SPLITS}}}
    [method] = expand(slow)
    with pytest.raises(Interrupted):
        train(method.config, root=tmp_path / "runs", device="cpu", max_seconds=1e-6)
    [planned] = _run(tmp_path, other, dry_run=True).shares
    assert planned.state.startswith("resumable")
    outcome = _run(tmp_path, other)
    [run] = read_runs(tmp_path / "runs")
    assert run.config == json.loads(json.dumps(method.config.to_tree()))
    assert all(f"{split}/r2" in row for row in outcome.rows for split in _SPLITS)


def test_models_that_are_gone_are_trained_again(tmp_path: Path):
    _run(tmp_path, _GRID)
    for file in (tmp_path / "runs").glob("*/checkpoint-*"):
        file.unlink()
    [share] = _run(tmp_path, _GRID).shares  # its scores are there
    assert share.finished
    [planned] = _run(tmp_path, _watched(splits=_SPLITS), dry_run=True).shares
    assert planned.state == "new"
    assert planned.path != share.path


def test_scoring_that_is_stopped_leaves_the_run_as_it_was(tmp_path: Path):
    _run(tmp_path, _GRID)
    before = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/*.json")}
    with pytest.raises(Interrupted, match="stopped while scoring"):
        _run(tmp_path, _watched(splits=_SPLITS), max_seconds=1e-6)
    assert {path: path.read_bytes() for path in before} == before
    _run(tmp_path, _watched(splits=_SPLITS))
    shutil.rmtree(tmp_path / "out")
    assert len(_run(tmp_path, _watched(splits=_SPLITS)).rows) == 4

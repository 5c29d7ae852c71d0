"""A sweep trains what is missing, once, and chooses without looking at the OOD set."""

import math
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

from hyla.cli import main
from hyla.commands.shared.exits import TRY_AGAIN, USAGE
from hyla.lab.methods import expand
from hyla.lab.plan.shares import plan
from hyla.results.runs import curve_rows, final_rows, read_runs
from hyla.results.selection import best_hyperparameters, estimate, hyperparameters_of
from hyla.results.sweep_table import write_table
from hyla.training import Interrupted, train
from hyla.training.run.directory import RunDirectory
from hyla.training.run.held import run_name

_TREE: dict[str, Any] = {
    "task": "fuzzy",
    "scale": "smoke",
    "set": {"steps": 2},
    "grid": {"members.seed": [0, 1], "members.learning_rate": [1e-3, 3e-3]},
}


def _with_grid(**grid: list[Any]) -> dict[str, Any]:
    keys = {key.replace("__", "."): values for key, values in grid.items()}
    return _TREE | {"grid": _TREE["grid"] | keys}


# --- expansion -----------------------------------------------------------------------------------


def test_members_make_populations_and_the_rest_makes_methods():
    methods = expand(_with_grid(model__attention=["hyla", "softmax"], steps=[2, 3]))
    assert [method.settings for method in methods] == [
        {"model.attention": attention, "steps": steps}
        for attention in ("hyla", "softmax")
        for steps in (2, 3)
    ]
    for method in methods:
        assert method.config.steps == method.settings["steps"]
        assert {(m.seed, m.learning_rate) for m in method.config.members} == {
            (seed, rate) for seed in (0, 1) for rate in (1e-3, 3e-3)
        }


def test_the_same_model_asked_for_twice_is_trained_once():
    [method] = expand(_with_grid(members__seed=[0, 0], task__held_out_fraction=[0.5, "5e-1"]))
    assert len(method.config.members) == 2
    [method] = expand(_with_grid(members__learning_rate=[1e-3, "1e-3"]))
    assert len(method.config.members) == 2


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"scale": "smoke"}, "task is missing"),
        ({"task": "fuzzy", "gird": {}}, "did you mean 'grid'"),
        ({"task": 3}, "task 3 is unknown"),
        ({"task": "fuzzy", "scale": 3}, "scale 3 is unknown"),
        ({"task": "fuzzy", None: 3}, "None is not a key"),
        ({"task": "fuzzy", "set": {"model": {None: 3}}}, r"model\.None is not a setting"),
        ({"task": "fuzzy", "set": {"evaluation": {"splits": ["ood"]}}}, "nothing to choose"),
        ({"task": "fuzzy", "grid": {"steps": 3}}, "must be a list"),
        ({"task": "fuzzy", "grid": [3]}, "must map"),
        ({"task": "fuzzy", "grid": {"model.atention": ["hyla"]}}, "did you mean 'attention'"),
        ({"task": "fuzzy", "grid": {"members.sed": [1]}}, "did you mean 'seed'"),
        ({"task": "fuzzy", "set": {"members": [{}]}, "grid": {"members.seed": [1]}}, "one by one"),
    ],
)
def test_mistakes_in_a_sweep_are_named(tree: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        expand(tree)


# --- planning ------------------------------------------------------------------------------------


def test_large_populations_are_dealt_out(tmp_path: Path):
    shares = plan(expand(_TREE), tmp_path, together=lambda config: 3)
    assert [(len(share.config.members), share.state) for share in shares] == [
        (3, "new"),
        (1, "new"),
    ]


def test_finished_members_are_not_trained_again(tmp_path: Path):
    [first] = plan(expand(_TREE), tmp_path, together=lambda config: 64)
    train(first.config, root=tmp_path, device="cpu")
    wider = expand(_with_grid(members__learning_rate=[1e-3, 1e-2]))
    finished, new = plan(wider, tmp_path, together=lambda config: 64)
    assert finished.finished
    assert {member.learning_rate for member in finished.config.members} == {1e-3}
    assert new.state == "new"
    assert {member.learning_rate for member in new.config.members} == {1e-2}
    # Another number of steps is another method: nothing of it is finished.
    [other] = plan(expand(_TREE | {"set": {"steps": 3}}), tmp_path, together=lambda config: 64)
    assert other.state == "new"


def test_interrupted_populations_are_continued_as_they_are(tmp_path: Path):
    tree = _TREE | {"set": {"steps": 1000}}
    [first] = plan(expand(tree), tmp_path, together=lambda config: 64)
    with pytest.raises(Interrupted):
        train(first.config, root=tmp_path, device="cpu", max_seconds=0)
    wider = expand(tree | {"grid": {**tree["grid"], "members.seed": [0, 1, 2]}})
    resumable, new = plan(wider, tmp_path, together=lambda config: 64)
    assert resumable.state.startswith("resumable at step ")
    assert resumable.path == first.path
    assert resumable.config == first.config
    assert {member.seed for member in new.config.members} == {2}
    # A narrower sweep has no use for the other members of that population.
    narrower = expand(tree | {"grid": {"members.seed": [0]}})
    assert [share.state for share in plan(narrower, tmp_path, together=lambda config: 64)] == [
        "new"
    ]


# --- choosing ------------------------------------------------------------------------------------


def _row(rate: float, validation: float, *, ood: float = 0.0, diverged: bool = False):
    settings = {"learning_rate": rate, "weight_decay": 0.1, "warmup_steps": 5}
    return settings | {"validation/r2": validation, "ood/r2": ood, "diverged": diverged}


def test_choice_is_by_the_mean_over_seeds_on_validation_not_ood():
    rows = [_row(1.0, 0.9, ood=0.1), _row(1.0, 0.1, ood=0.1)]
    rows += [_row(2.0, 0.6, ood=0.0), _row(2.0, 0.7, ood=0.0)]
    assert best_hyperparameters(rows, "r2") == hyperparameters_of(rows[2])


def test_diverged_and_undefined_settings_rank_last():
    worst = [_row(3.0, -5.0), _row(3.0, -5.0)]
    rows = [_row(1.0, 0.9), _row(1.0, 0.9, diverged=True), _row(2.0, math.nan), _row(2.0, 0.9)]
    assert best_hyperparameters([*rows, *worst], "r2") == hyperparameters_of(worst[0])


def test_a_setting_with_fewer_seeds_is_not_picked():
    rows = [_row(1.0, 0.3), _row(1.0, 0.7), _row(2.0, 0.6)]
    assert best_hyperparameters(rows, "r2") == hyperparameters_of(rows[0])
    assert best_hyperparameters([*rows, _row(2.0, 0.6)], "r2") == hyperparameters_of(rows[2])


def test_standard_error_needs_two_seeds():
    rows = [_row(1.0, 0.5), _row(1.0, 0.7)]
    assert str(estimate(rows, "validation/r2")) == "0.600 ± 0.100"
    assert str(estimate(rows[:1], "validation/r2")) == "0.500"


# --- the command ---------------------------------------------------------------------------------


def _sweep(folder: Path, grid: str, *arguments: str) -> int:
    file = folder / "mine.yaml"
    file.write_text(grid)
    folders = ("--root", str(folder / "runs"), "--out", str(folder / "out"))
    return main(["sweep", str(file), *folders, "--device", "cpu", *arguments])


_GRID = """
task: fuzzy
scale: smoke
set: {steps: 20}
grid:
  model.attention: [hyla, linear]
  members.learning_rate: [1e-3, 3e-3]
  members.seed: [0, 1]
"""


def test_sweep_from_grid_to_table(tmp_path: Path, capsys):
    assert _sweep(tmp_path, _GRID, "--dry-run") == 0
    assert capsys.readouterr().out.count(" new ") == 2
    assert not (tmp_path / "runs").exists()

    assert _sweep(tmp_path, _GRID, "--max-seconds", "1e-6") == TRY_AGAIN
    assert _sweep(tmp_path, _GRID, "--dry-run") == 0
    assert "resumable at step" in capsys.readouterr().out

    assert _sweep(tmp_path, _GRID) == 0
    table = pandas.read_parquet(tmp_path / "out" / "mine.parquet")
    assert len(table) == len(pandas.read_csv(tmp_path / "out" / "mine.csv")) == 8
    picked = table[table["picked"]]
    assert sorted(picked["model.attention"]) == ["hyla", "hyla", "linear", "linear"]
    for _, method in table.groupby("model.attention"):
        means: Any = method.groupby("learning_rate")["validation/r2"].mean()
        assert set(method[method["picked"]]["learning_rate"]) == {means.idxmax()}
    for column in ("seed", "ood/r2", "diverged", "steps", "seconds", "device", "torch"):
        assert column in table
    assert "hyla" in capsys.readouterr().out

    # Again: nothing is trained, the same table comes out.
    assert _sweep(tmp_path, _GRID) == 0
    assert "population" not in capsys.readouterr().out
    pandas.testing.assert_frame_equal(table, pandas.read_parquet(tmp_path / "out" / "mine.parquet"))


def test_a_grid_with_a_point_in_its_name_keeps_it(tmp_path: Path):
    written = write_table([{"seed": 0}], tmp_path / "a-0.5")
    assert [path.name for path in written] == ["a-0.5.parquet", "a-0.5.csv"]
    assert all(path.exists() for path in written)


def test_rows_of_a_table_need_not_have_the_same_columns(tmp_path: Path):
    rows = [{"seed": 0, "rate": 1}, {"seed": 1, "rate": 0.5, "diverged_at": 3}]
    for path in write_table(rows, tmp_path / "table"):
        read = pandas.read_parquet if path.suffix == ".parquet" else pandas.read_csv
        table = read(path)
        assert list(table) == ["seed", "rate", "diverged_at"]
        assert list(table["rate"]) == [1, 0.5]
        assert table["diverged_at"].isna().tolist() == [True, False]


def test_without_pandas_and_pyarrow_there_is_the_csv_alone(tmp_path: Path, capsys, monkeypatch):
    for name in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it could not be imported
    assert _sweep(tmp_path, "task: fuzzy\nscale: smoke\nset: {steps: 1}") == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.csv"]
    assert "hyla[tables]" in capsys.readouterr().out  # brackets, which rich would take for a style


def test_time_of_slurm_jobs_is_slurms(tmp_path: Path, capsys):
    assert _sweep(tmp_path, _GRID, "--launcher", "slurm", "--max-seconds", "3") == USAGE
    assert "--slurm.time" in capsys.readouterr().err
    assert _sweep(tmp_path, _GRID, "--slurm.time", "3") == USAGE
    assert "--slurm.* is for --launcher slurm" in capsys.readouterr().err


def test_a_machine_without_slurm_is_told_so(tmp_path: Path, capsys, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _sweep(tmp_path, _GRID, "--launcher", "slurm") == USAGE
    said = capsys.readouterr().err
    assert "Slurm's commands are not found here (sbatch, srun, squeue)" in said
    assert "--launcher local" in said


def test_what_another_process_trains_is_left_to_it(tmp_path: Path, capsys):
    [theirs, _] = expand(yaml.safe_load(_GRID))
    name, tree = run_name(theirs.config), theirs.config.to_tree()
    with RunDirectory.open(tmp_path / "runs", name, tree):
        assert _sweep(tmp_path, _GRID) == TRY_AGAIN
    out, said = capsys.readouterr()
    assert "another process is training it" in out
    assert "1 of 2 populations are being trained by other processes" in said


# --- the store -----------------------------------------------------------------------------------


def test_store_reads_runs_into_rows(tmp_path: Path):
    [share] = plan(expand(_TREE), tmp_path, together=lambda config: 64)
    summary = train(share.config, root=tmp_path, device="cpu")
    [run] = read_runs(tmp_path)
    rows = final_rows(run)
    assert [row["seed"] for row in rows] == [member.seed for member in share.config.members]
    assert rows[1]["ood/r2"] == summary["members"][1]["metrics"]["ood/r2"]
    assert rows[0]["model.attention"] == "hyla"
    assert rows[0]["evaluation.splits"] == "validation test ood"
    curves = curve_rows(run)
    assert {row["step"] for row in curves} == {2}
    assert {row["member"] for row in curves} == {0, 1, 2, 3}
    assert any("loss" in row for row in curves)
    assert read_runs(tmp_path / "nowhere") == []

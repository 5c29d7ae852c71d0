"""The store's tables: nothing twice, nothing lost, and the choice made without the OOD set."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas
import pytest

from hyla.attention.spec import PRESETS
from hyla.lab.methods import expand, titled
from hyla.results.conditions import Conditions
from hyla.results.csv_table import read_csv, rows_of_frame, write_csv
from hyla.results.runs import read_run
from hyla.results.scoring import score_rest
from hyla.results.tables import Cell, Tables, cells_of, stored_conditions
from hyla.results.trimming import drop_optimiser_state
from hyla.training import (
    Interrupted,
    TrainConfig,
    config_from_tree,
    load_preset,
    merge,
    run_path,
    train,
)
from hyla.training.identity import computed, fingerprint, method_key
from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.errors import CheckpointError, NoRunError

SMOKE = Conditions(scale="smoke")


def tiny(**changes) -> TrainConfig:
    tree = {"steps": 4, "members": {"seed": [0, 1], "learning_rate": [1e-3, 3e-3]}}
    return config_from_tree(merge(load_preset("fuzzy", "smoke"), merge(tree, changes)))


def test_csv_keeps_values_and_types(tmp_path: Path):
    rows = [
        {"a": 1, "b": 0.1, "c": "x, y", "d": True, "e": None},
        {"a": -3, "b": math.inf, "c": "8", "d": False, "f": 5e-324},
    ]
    write_csv(rows, tmp_path / "t.csv")
    first, second = read_csv(tmp_path / "t.csv")
    assert first == rows[0] | {"f": None}
    assert second == rows[1] | {"c": 8, "e": None}  # text that is a number comes back as one
    assert read_csv(tmp_path / "none.csv") == []


def test_method_key_is_about_what_is_computed():
    config = tiny()
    assert method_key(config) == method_key(tiny(members={"seed": [7]}))
    assert method_key(config) == method_key(tiny(evaluation={"every": 3}, log_every=1))
    model = dataclasses.replace(config.model, backend="reference")
    assert method_key(config) == method_key(dataclasses.replace(config, model=model))
    different = {
        method_key(other)
        for other in (
            config,
            tiny(steps=5),
            tiny(precision="tf32"),
            tiny(model={"attention": "linear"}),
            tiny(task={"held_out_fraction": 0.5}),
        )
    }
    assert len(different) == 5


def test_a_preset_of_ones_own_is_told_by_its_name(monkeypatch):
    monkeypatch.setitem(PRESETS, "mine", PRESETS["linear"])
    [method] = expand({"task": "fuzzy", "scale": "smoke", "set": {"model": {"attention": "mine"}}})
    assert str(titled(method, Conditions(scale="smoke"))) == "fuzzy mine"


def test_settings_at_their_defaults_have_no_part_in_the_key():
    """Else a setting that is added later would orphan every committed row."""
    config = tiny()
    assert config.model.tied is False
    assert "tied" not in computed(config)["model"]
    changed = dataclasses.replace(config, model=dataclasses.replace(config.model, num_layers=2))
    assert method_key(changed) != method_key(config)


def test_runs_are_collected_once(tmp_path: Path):
    config = tiny()
    train(config, root=tmp_path / "runs", device="cpu")
    tables = Tables(tmp_path / "store", SMOKE)
    run = read_run(run_path(config, tmp_path / "runs"))
    tables.add_runs([run])
    content = (tables.folder / "models-fuzzy.csv").read_bytes()
    tables.add_runs([run])
    assert (tables.folder / "models-fuzzy.csv").read_bytes() == content
    rows = tables.models()
    assert len(rows) == 4
    for name in ("method", "seed", "step", "ood/r2", "train/loss", "device", "torch", "git_commit"):
        assert name in rows[0]
    assert all(math.isfinite(row["train/loss"]) for row in rows)
    assert stored_conditions(tmp_path / "store") == [SMOKE]

    # What another machine measured of the same method joins it.
    more = tiny(members={"seed": [2]})
    train(more, root=tmp_path / "other", device="cpu")
    tables.add_runs([read_run(run_path(more, tmp_path / "other"))])
    [cell] = cells_of([config], tables)
    assert {row["seed"] for row in cell.rows} == {0, 1, 2}
    assert cells_of([tiny(steps=5)], tables) == []


def test_a_cell_picks_by_validation_and_reports_ood():
    config = tiny()
    rows = [
        {
            "learning_rate": rate,
            "weight_decay": 0.1,
            "warmup_steps": 5,
            "seed": seed,
            "diverged": False,
            "validation/r2": validation,
            "ood/r2": ood,
        }
        for rate, validation, ood in ((1e-3, 0.9, 0.2), (3e-3, 0.5, 0.8))
        for seed in (0, 1)
    ]
    cell = Cell(config=config, rows=rows, curves=())
    assert cell.hyperparameters["learning_rate"] == 1e-3
    assert cell.ood is not None
    assert cell.ood.mean == pytest.approx(0.2)
    assert cell.searched == (2, 2)
    assert cell.score("unknown_terms/r2") is None
    rows[0]["validation/r2"], rows[1]["validation/r2"] = math.nan, 0.1
    assert max(rows[:2], key=cell.validated)["seed"] == 1  # what diverged is not the best


def test_trimming_leaves_the_models(tmp_path: Path):
    config = tiny()
    train(config, root=tmp_path, device="cpu")
    path = run_path(config, tmp_path)

    def tensors():
        found = FileCheckpoints(path, fingerprint(read_run(path).config), say=pytest.fail).latest()
        assert found is not None
        return found.tensors

    def size() -> int:
        return sum(file.stat().st_size for file in path.glob("checkpoint-*"))

    before, size_before = tensors(), size()
    drop_optimiser_state(path)
    after = tensors()
    assert size() < 0.6 * size_before
    kept = {name for name in before if "moment" not in name}
    assert after.keys() == kept
    assert all(after[name].equal(before[name]) for name in kept)
    drop_optimiser_state(path)  # again: nothing to do
    assert tensors().keys() == kept
    assert train(config, root=tmp_path, device="cpu")["steps"] == 4  # still finished


def test_a_finished_run_whose_last_checkpoint_is_damaged_is_left_alone(tmp_path: Path):
    """An older checkpoint holds other models than those that were scored."""
    config = tiny(steps=4)
    train(config, root=tmp_path, device="cpu")
    path = run_path(config, tmp_path)
    last = path / "checkpoint-000004.safetensors"
    run = read_run(path)
    checkpoints = FileCheckpoints(path, run.fingerprint)
    found = checkpoints.latest()
    assert found is not None
    assert found.tensors is not None
    FileCheckpoints(path, run.fingerprint)._write(
        path / "checkpoint-000003.safetensors", 3, found.tensors, found.meta
    )
    damaged = bytearray(last.read_bytes())
    damaged[-1] ^= 1
    last.write_bytes(damaged)
    content = {file.name: file.read_bytes() for file in path.iterdir()}
    drop_optimiser_state(path)
    asked = dataclasses.replace(config.evaluation, splits=("ood",), final_instances=99_999)
    with pytest.raises(CheckpointError, match="no intact checkpoint of its end"):
        score_rest(path, asked, device="cpu")
    assert {file.name: file.read_bytes() for file in path.iterdir()} == content


def test_an_unfinished_run_is_not_trimmed(tmp_path: Path):
    config = tiny(steps=1000)
    with pytest.raises(Interrupted):
        train(config, root=tmp_path, device="cpu", max_seconds=0)
    path = run_path(config, tmp_path)
    content = {file.name: file.read_bytes() for file in path.glob("checkpoint-*")}
    drop_optimiser_state(path)
    assert {file.name: file.read_bytes() for file in path.glob("checkpoint-*")} == content


def test_keys_survive_csv(tmp_path: Path):
    """Of hexadecimal digits alone, one in some hundred would come back as a number."""
    rows = [{"method": method_key(tiny(steps=steps))} for steps in range(1, 400)]
    write_csv(rows, tmp_path / "keys.csv")
    assert read_csv(tmp_path / "keys.csv") == rows


def test_measured_numbers_take_the_digits_that_a_figure_needs():
    x = np.array([31.11581234], dtype=np.float32)
    table = pandas.DataFrame({"x": x, "layer": [1.0], "low": [math.nan]})
    assert str(rows_of_frame(table, digits=".4f", what="seen")) == (
        "[{'what': 'seen', 'x': 31.1158, 'layer': 1, 'low': None}]"
    )


def test_a_run_that_is_not_there_is_no_empty_run(tmp_path):
    with pytest.raises(NoRunError, match="nothing is not a run directory: it does not exist"):
        read_run(tmp_path / "nothing")
    with pytest.raises(NoRunError, match=r"it holds no config\.json"):
        read_run(tmp_path)

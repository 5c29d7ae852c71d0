"""`hyla bench` at a size that takes no time: what it writes, not how fast this machine is."""

import json
from pathlib import Path

import pytest
import torch

from hyla.benchmarks import samplers, training
from hyla.benchmarks.training import Case
from hyla.cli import main
from hyla.commands.shared.exits import USAGE
from hyla.training import load_preset


def _bench(out: Path, what: str) -> int:
    return main(["bench", what, "--device", "cpu", "--seconds", "0.01", "--out", str(out)])


def test_training_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    cases = [Case(task="fuzzy", attention="hyla", members=n) for n in (1, 2)]
    monkeypatch.setattr(training, "CASES", {"cpu": cases})
    monkeypatch.setattr(training, "load_preset", lambda task, scale: load_preset(task, "smoke"))
    assert _bench(tmp_path / "out", "train") == 0
    path = tmp_path / "out" / "train-cpu.json"
    assert str(path) in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert written["environment"]["device"].startswith("CPU (")
    assert written["environment"]["torch"] == torch.__version__
    assert [row["members"] for row in written["rows"]] == [1, 2]
    for row in written["rows"]:
        assert row["model_steps_per_second"] == row["steps_per_second"] * row["members"] > 0
        assert row["loss_error"] <= training.TOLERANCE["float32"]


def test_wrong_losses_are_not_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "load_preset", lambda task, scale: load_preset(task, "smoke"))
    monkeypatch.setattr(training, "_reference_losses", lambda case, device: torch.tensor([9.0]))
    case = Case(task="fuzzy", attention="hyla", members=1)
    with pytest.raises(RuntimeError, match="differ from the reference path"):
        training.measure_case(case, torch.device("cpu"), 0.01)


def test_samplers_are_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(samplers, "BATCH_SIZE", 2)
    monkeypatch.setattr(samplers, "POPULATION", 2)
    monkeypatch.setattr(samplers.torch, "compile", lambda sampler, **options: sampler)
    assert _bench(tmp_path, "samplers") == 0
    rows = json.loads((tmp_path / "samplers-cpu.json").read_text())["rows"]
    assert len(rows) == 8
    assert all(row["batches_per_second"] > 0 for row in rows)


def test_a_benchmark_that_cannot_run_leaves_no_folder(tmp_path: Path):
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        _bench(tmp_path / "out", "attention")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def read_only(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(samplers, "BATCH_SIZE", 2)
    monkeypatch.setattr(Path, "mkdir", read_only)
    assert _bench(tmp_path / "out", "samplers") == USAGE
    assert "out/samplers-cpu.json: Read-only file system" in capsys.readouterr().err


def test_a_file_in_the_way_is_noticed_first(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("")
    assert _bench(tmp_path / "file", "train") == USAGE
    assert "is not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "nan", "inf"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, seconds: str, capsys):
    out = tmp_path / "out"
    assert main(["bench", "samplers", "--seconds", seconds, "--out", str(out)]) == USAGE
    assert "--seconds must be positive and finite" in capsys.readouterr().err
    assert not out.exists()

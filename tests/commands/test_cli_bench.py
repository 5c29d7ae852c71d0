"""`hyla bench` at a size that takes no time: what it writes, not how fast this machine is."""

import json
from pathlib import Path

import pytest
import torch

from hyla._environment import git_commit
from hyla.benchmarks import samplers, training
from hyla.benchmarks.recorded import beside_recorded, in_columns
from hyla.benchmarks.training_cases import AUTHORS, Case, cases
from hyla.cli import main
from hyla.commands import bench
from hyla.commands.shared.exits import USAGE
from hyla.training import config_from_tree, load_preset, merge


def _bench(out: Path, what: str) -> int:
    return main(["bench", what, "--device", "cpu", "--seconds", "0.01", "--out", str(out)])


def test_training_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    rows = [Case(task="fuzzy", attention="hyla", members=n) for n in (1, 2)]
    monkeypatch.setattr(training, "cases", lambda device, quick: rows)
    monkeypatch.setattr(training, "load_preset", lambda task, scale: load_preset(task, "smoke"))
    assert _bench(tmp_path / "out", "train") == 0
    path = tmp_path / "out" / "train-cpu.json"
    assert str(path) in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert written["environment"]["device"].startswith("CPU (")
    assert written["environment"]["torch"] == torch.__version__
    assert written["environment"]["git_commit"] == git_commit()
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_row_is_a_population_of_its_own(device: str):
    rows = cases(device)
    assert len(set(map(str, rows))) == len(rows)
    assert set(map(str, cases(device, quick=True))) < set(map(str, rows))
    shapes = {(device, row.task, row.attention, row.variant) for row in rows}
    assert {key for key in AUTHORS if key[0] == device} <= shapes
    for row in rows:  # with settings that exist
        config_from_tree(merge(load_preset(row.task, "paper"), row.changes()))


def test_a_row_stands_beside_what_others_sent(tmp_path: Path):
    def row(figure: float, **changes) -> dict:
        base = {"task": "sraven", "attention": "hyla", "members": 12, "precision": "tf32"}
        return base | {"model_steps_per_second": figure} | changes

    def send(name: str, device: str, *rows: dict) -> None:
        content = {"environment": {"device": device}, "rows": rows}
        (tmp_path / f"train-{name}.json").write_text(json.dumps(content))

    send("cuda", "NVIDIA H200", row(2562.5), row(852.0, members=1))
    send("mine", "NVIDIA H200", row(9.0, variant="width 4"))
    send("cpu", "CPU", row(4.0, precision="float32"))
    own = {"variant": "", "authors_steps_per_second": "820 vmapped", "peak_memory_gib": 2.5}
    lines = beside_recorded(
        [row(3000.0, **own), row(800.0, **own | {"variant": "width 4"})], tmp_path
    )
    assert lines[0]["model-steps/s here"] == "3,000"
    assert lines[0]["NVIDIA H200"] == "2,562"
    assert lines[0]["authors' steps/s"] == "820 vmapped"
    assert lines[1]["NVIDIA H200 (train-mine)"] == "9"
    assert "CPU" not in lines[0]  # it has no row of these
    heading, first, _ = in_columns(lines)
    assert first.index("2,562") == heading.index("NVIDIA H200")


def test_a_row_that_does_not_fit_is_said_and_the_rest_measured(monkeypatch: pytest.MonkeyPatch):
    def full(case, device, seconds):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(training, "measure_case", full)
    rows = list(training.measure(torch.device("cpu"), quick=True))
    assert [row["note"] for row in rows] == ["out of memory"] * len(cases("cpu", quick=True))
    assert beside_recorded(rows, Path("nowhere"))[0]["model-steps/s here"] == "out of memory"


def test_a_row_that_fails_says_why_and_the_command_with_it(tmp_path: Path, monkeypatch, capsys):
    def wrong(case, device, seconds):
        if case.members == 1:
            raise RuntimeError("training losses differ\nby much")
        return {"model_steps_per_second": 3.0, "authors_steps_per_second": ""}

    rows = [Case(task="fuzzy", attention="hyla", members=n) for n in (1, 2)]
    monkeypatch.setattr(training, "cases", lambda device, quick: rows)
    monkeypatch.setattr(training, "measure_case", wrong)
    with pytest.raises(SystemExit, match="1 failed"):
        _bench(tmp_path, "train")
    failed, right = json.loads((tmp_path / "train-cpu.json").read_text())["rows"]
    assert failed["error"] == "RuntimeError: training losses differ"
    assert right["model_steps_per_second"] == 3
    assert "failed" in capsys.readouterr().out


def test_errors_stand_in_the_table_as_they_are(tmp_path: Path, monkeypatch, capsys):
    failed = {"note": "failed", "error": "ValueError: [/no] style"}
    monkeypatch.setitem(bench._BENCHMARKS, "language", lambda device, seconds: iter([failed]))
    with pytest.raises(SystemExit, match="1 failed"):
        _bench(tmp_path, "language")
    assert capsys.readouterr().out.count("[/no] style") == 2


def test_the_table_needs_no_command_line_tool(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(
        training, "cases", lambda device, quick: [Case(task="fuzzy", attention="hyla", members=1)]
    )
    monkeypatch.setattr(training, "load_preset", lambda task, scale: load_preset(task, "smoke"))
    out = tmp_path / "train.json"
    arguments = ["--device", "cpu", "--seconds", "0.01", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["training", *arguments, "--recorded", str(tmp_path)])
    training.main()
    written = json.loads(out.read_text())
    assert len(written["rows"]) == 1
    assert written["environment"]["git_commit"] == git_commit()
    assert "model-steps/s here" in capsys.readouterr().out


def test_quick_is_for_training_alone(tmp_path: Path, capsys):
    assert main(["bench", "samplers", "--quick", "--out", str(tmp_path)]) == USAGE
    assert "--quick is for train" in capsys.readouterr().err


def test_samplers_are_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(samplers, "BATCH_SIZE", 2)
    monkeypatch.setattr(samplers, "POPULATION", 2)
    monkeypatch.setattr(samplers.torch, "compile", lambda sampler, **options: sampler)
    assert _bench(tmp_path, "samplers") == 0
    rows = json.loads((tmp_path / "samplers-cpu.json").read_text())["rows"]
    assert len(rows) == 8
    assert all(row["batches_per_second"] > 0 for row in rows)


@pytest.mark.parametrize("what", ["attention", "small-attention", "outputs"])
def test_a_benchmark_that_cannot_run_leaves_no_folder(tmp_path: Path, what: str):
    with pytest.raises(SystemExit, match=f"hyla bench {what} .* needs a CUDA device"):
        _bench(tmp_path / "out", what)
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def read_only(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(samplers, "BATCH_SIZE", 2)
    monkeypatch.setattr(Path, "mkdir", read_only)
    assert _bench(tmp_path / "out", "samplers") == USAGE
    assert "out/samplers-cpu.json: Read-only file system" in capsys.readouterr().err


def test_what_fails_while_it_is_measured_is_no_place_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(device, seconds):
        yield {"request": "first"}
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setitem(bench._BENCHMARKS, "explorer", refused)
    with pytest.raises(ConnectionRefusedError):
        _bench(tmp_path, "explorer")
    assert json.loads((tmp_path / "explorer-cpu.json").read_text())["rows"]


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

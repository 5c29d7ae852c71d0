"""A full disk is answered with a message, whichever command meets it, and wherever it writes."""

from pathlib import Path

import pytest

from hyla.cli import main
from hyla.commands.shared.exits import FAILURE
from hyla.integrations.export import SUFFIXES
from hyla.lab import demo

GRID = """
task: fuzzy
scale: smoke
set: {steps: 2}
grid: {members.seed: [0, 1]}
"""
REPRODUCE = ["reproduce", "fig2c", "--scale", "smoke", "--seeds", "1", "--no-search"]
FEW = ["--shorten", "10", "--only", "model.attention=hyla", "task.sequence_length=8"]


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass


def assert_told(command: list[str], disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == FAILURE
    error = capsys.readouterr().err
    assert f"Disk full: cannot write {disk}" in error
    assert ", 0.0 MB are free" in error


def small_run(root: Path) -> str:
    assert main(["train", "fuzzy", "--scale", "smoke", "--steps", "2", "--root", str(root)]) == 0
    (run,) = root.glob("fuzzy-*")
    return str(run)


def test_demo(tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(demo, "SCALE", "smoke")
    monkeypatch.setattr(demo, "CHANGES", {})
    fill(tiny_disk)
    assert_told(
        ["demo", "--root", str(tmp_path / "runs"), "--out", str(tiny_disk)], tiny_disk, capsys
    )


def test_sweep(tiny_disk: Path, tmp_path: Path, capsys):
    grid = tmp_path / "grid.yaml"
    grid.write_text(GRID)
    fill(tiny_disk)
    runs = ["--root", str(tmp_path / "runs")]
    assert_told(["sweep", str(grid), *runs, "--out", str(tiny_disk)], tiny_disk, capsys)


def test_reproduce_and_report(tiny_disk: Path, tmp_path: Path, capsys):
    command = [*REPRODUCE, *FEW, "--root", str(tmp_path / "runs"), "--out", str(tiny_disk)]
    fill(tiny_disk)
    assert_told(command, tiny_disk, capsys)
    (tiny_disk / "filler").unlink()
    assert main([*command, "--no-report"]) == 0
    fill(tiny_disk)
    assert_told(["report", str(tiny_disk)], tiny_disk, capsys)


def test_latents(tiny_disk: Path, tmp_path: Path, capsys):
    run = small_run(tmp_path)
    fill(tiny_disk)
    options = ["--figure", "mean_codes", "--instances", "64", "--out", str(tiny_disk)]
    assert_told(["latents", run, *options], tiny_disk, capsys)


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_export(tiny_disk: Path, tmp_path: Path, format: str, capsys):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    run = small_run(tmp_path)
    fill(tiny_disk)
    options = ["--format", format, "--out", str(tiny_disk / f"program{SUFFIXES[format]}")]
    assert_told(["export", run, *options], tiny_disk, capsys)
    assert [path.name for path in tiny_disk.iterdir()] == ["filler"]


def test_sraven_export_and_predict(tiny_disk: Path, capsys):
    fill(tiny_disk)
    out = str(tiny_disk / "data")
    assert_told(["sraven", "export", out, "--instances", "1000"], tiny_disk, capsys)
    answers = ["--variant", "features3", "--out", str(tiny_disk / "answers.parquet")]
    assert_told(["sraven", "predict", "chance", *answers], tiny_disk, capsys)

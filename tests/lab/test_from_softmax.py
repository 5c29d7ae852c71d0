"""The tool that measures the way from softmax to HYLA: in order, in slices, on bare machines."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hyla.results.runs import read_runs
from tiny_text import tiny_corpus

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import from_softmax  # pyright: ignore[reportMissingImports]  # noqa: E402

_BARE = """
import runpy, sys
sys.modules |= dict.fromkeys(("cyclopts", "pandas", "matplotlib", "plotly", "sentencepiece"))
sys.argv = {arguments!r}
sys.path[0] = {tools!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SIZE = ["--scale", "smoke", "--steps", "8", "--more", "4", "--distil", "2", "--device", "cpu"]
SIZE += ["--set", "model.embed_dim=16", "model.mlp_dim=32", "model.sequence_length=16"]


def arguments(folder: Path, *more: str) -> list[str]:
    corpus = tiny_corpus(folder / "text")
    return [str(corpus.path), "--root", str(folder / "runs"), *more, *SIZE]


def test_it_measures_every_way_where_little_is_installed(tmp_path: Path):
    file = tmp_path / "out" / "found.json"
    command = [str(TOOLS / "from_softmax.py"), *arguments(tmp_path, "--json", str(file))]
    code = _BARE.format(arguments=command, tools=str(TOOLS))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["device"].startswith("CPU")
    ways = {(row["attention"], row["way"]): row for row in found["rows"]}
    assert len(ways) == 1 + 3 * len(from_softmax.ATTENTIONS) + 3
    for attention in from_softmax.ATTENTIONS:
        distilled = ways[attention, "copied, distilled, trained on"]
        copied = ways[attention, "copied, trained on"]
        scratch = ways[attention, "from scratch, as many tokens in all"]
        assert (distilled["distil_steps"], copied["distil_steps"]) == (2, 0)
        assert scratch["tokens"] == distilled["tokens"] + ways["softmax", _BASE]["tokens"]
        assert len({row["loss"] for row in (distilled, copied, scratch)}) == 3


_BASE = "the softmax model that is converted"


def test_slices_end_in_order_and_the_next_goes_on(tmp_path: Path, monkeypatch, capsys):
    command = arguments(tmp_path, "--max-seconds", "1e9")
    # Time for two runs: the third finds none left.
    clock = iter([0.0, 0.0, 0.0, 1e9])
    monkeypatch.setattr(from_softmax, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert from_softmax.main(command) == 75
    assert "copied, trained on, and what comes after it is left" in capsys.readouterr().out
    finished = [run.path for run in read_runs(tmp_path / "runs") if run.summary is not None]
    assert len(finished) == 2
    assert from_softmax.main([*command, "--list"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("copied, distilled, trained on") == 2
    monkeypatch.undo()
    times = {path: (path / "finished.json").stat().st_mtime_ns for path in finished}
    assert from_softmax.main(command) == 0
    assert times == {path: (path / "finished.json").stat().st_mtime_ns for path in finished}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--distil", "9"], "below the steps after the conversion, --more 4"),
        (["--set", "model.attention"], "--set takes NAME=VALUE"),
        (["--set", "model.num_head=3"], "num_heads"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_trained(
    tmp_path: Path, wrong: list[str], said: str, capsys
):
    assert from_softmax.main([*arguments(tmp_path), *wrong]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()

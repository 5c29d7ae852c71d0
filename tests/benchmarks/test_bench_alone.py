"""Benchmarks by `python -m`: without the command's packages, and a part of their rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hyla.benchmarks import ahead, language, training
from hyla.benchmarks.cases import chosen
from hyla.benchmarks.command_line import record
from hyla.benchmarks.language import PLAIN
from hyla.benchmarks.training_cases import Case, cases

ABSENT = ("cyclopts", "submitit", "plotly", "datasets", "fastapi", "beartype")
CPU = torch.device("cpu")


def test_they_start_where_the_packages_of_the_command_line_are_missing():
    code = f"""
import contextlib, importlib, sys
sys.modules |= dict.fromkeys({ABSENT})
sys.argv = ["benchmark", "--help"]
for name in ("attention", "language", "outputs", "training"):
    with contextlib.suppress(SystemExit):
        importlib.import_module(f"hyla.benchmarks.{{name}}").main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for option in ("--out", "--attentions NAME", "--only TEXT", "--warm-jobs N"):
        assert option in done.stdout
    assert done.stdout.count("usage: python -m hyla.benchmarks.") == 4


def test_every_row_is_written_before_the_next_is_measured(tmp_path: Path, capsys):
    out = tmp_path / "new" / "rows.json"

    def measure(device, seconds, *, models):
        for model in models:
            yield {"model": model, "seconds": seconds, "nothing": None}
            written = json.loads(out.read_text())
            assert written["rows"][-1]["model"] == model
            assert written["environment"]["torch"] == torch.__version__

    rows = record(measure, "cpu", 0.5, out, models=["a", "b"])
    assert [row["model"] for row in rows] == ["a", "b"]
    assert "model b · seconds 0.5\n" in capsys.readouterr().out


def test_rows_are_chosen_by_a_part_of_their_names():
    rows = cases("cuda")
    widest = chosen(rows, ["hyla width 4 x"])
    assert {case.members for case in widest} == {1, 2, 4, 8}
    both = chosen(rows, ["softmax x12", "plain blocks"])
    assert sorted(map(str, both)) == [
        "fuzzy hyla x12 tf32 plain blocks",
        "fuzzy softmax x12 tf32",
        "sraven hyla x12 tf32 plain blocks",
        "sraven softmax x12 tf32",
    ]
    assert chosen(rows, []) == list(rows)
    plain, first = "sraven hyla x12 tf32", "fuzzy softmax x12"
    assert f"{plain} plain blocks" in map(str, rows)
    found = chosen(rows, [plain, first])  # a whole name is no part of longer ones
    assert list(map(str, found)) == [x for x in map(str, rows) if x == plain or first in x]
    with pytest.raises(SystemExit, match="nothing is called hila or x13; there are\n"):
        chosen(rows, ["hila", "x13"])


def test_what_is_chosen_is_compiled_and_then_measured(monkeypatch):
    done = []

    def compile_ahead(module, options, jobs):
        done.append((jobs, [given[-1] for given in options]))

    def measure_case(case, device, seconds):
        done.append(case.attention)
        return {}

    rows = [Case(task="fuzzy", attention=name, members=1) for name in ("hyla", "softmax", "linear")]
    monkeypatch.setattr(training, "cases", lambda device, quick: rows)
    monkeypatch.setattr(training, "compile_ahead", compile_ahead)
    monkeypatch.setattr(training, "measure_case", measure_case)
    list(training.measure(CPU, 1.0, only=["hyla", "linear"], warm_jobs=3))
    names = ["fuzzy hyla x1 float32", "fuzzy linear x1 float32"]
    assert done == [(3, names), "hyla", "linear"]


def test_compiling_ahead_says_what_failed_and_forgets_choices(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "job.py").write_text(
        "import os, pathlib, sys\n"
        "folder = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR'], sys.argv[1])\n"
        "folder.mkdir()\n"
        "(folder / 'kernel.best_config').touch()\n"
        "(folder / 'kernel.cubin').touch()\n"
    )
    (tmp_path / "there").mkdir()
    earlier = tmp_path / "there" / "trained.best_config"
    earlier.touch()
    ahead.compile_ahead("job", [["new"], ["there"]], 2)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["kernel.cubin"]
    assert earlier.exists()
    said = capsys.readouterr().out
    assert said.startswith("there: not compiled ahead: FileExistsError")
    assert said.count("\n") == 1


def test_only_some_models_of_language(monkeypatch):
    small = language.Case(size="nano", length=8, tokens_per_step=16, precision="float32")
    monkeypatch.setattr(language, "VOCAB_SIZE", 64)
    rows = list(language.measure(CPU, 0.05, small, models=["softmax", "hyla.expected2"]))
    assert [row["model"] for row in rows] == ["softmax", "hyla.expected2"]
    assert [row["over_plain"] for row in rows] == [None, None]
    assert rows[1]["over_softmax"] > 0
    with pytest.raises(ValueError, match="'hila' is unknown"):
        next(language.measure(CPU, 0.05, small, models=[PLAIN, "hila"]))

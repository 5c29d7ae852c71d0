"""Compiled code is kept beside the runs, unless somebody has chosen another place."""

import os
from pathlib import Path

import torch

from hyla.results.runs import read_runs
from hyla.training.compiled import folder_of_compiled, keep_compiled


def test_code_is_kept_beside_the_runs_where_no_run_is_seen(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that it is restored
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compiled(tmp_path)
    place = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert place == folder_of_compiled(tmp_path)
    assert tmp_path in place.parents
    assert torch.__version__ in place.name
    place.mkdir(parents=True)
    assert read_runs(tmp_path) == []


def test_a_place_that_was_chosen_stays(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    keep_compiled(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"

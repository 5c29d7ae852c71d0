"""Compiled code is kept beside the runs, unless somebody has chosen another place."""

import importlib.util
import os
import shutil
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from hyla import _compiler_tag
from hyla.results.runs import read_runs
from hyla.training.compiling import folder_of_compiled, keep_compiled
from hyla.training.population import stacked_linear


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


def test_the_place_that_torch_has_chosen_by_itself_does_not_stay(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    keep_compiled(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder_of_compiled(tmp_path))


def test_code_of_other_sources_is_not_found(tmp_path: Path):
    """The tag, which is a part of the key, is another as soon as a module is."""

    def tag() -> str:
        spec = importlib.util.spec_from_file_location("copied", tmp_path / "_compiler_tag.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module._own_tag()

    shutil.copy(_compiler_tag.__file__, tmp_path)
    (tmp_path / "operators.py").write_text("sign = 1")
    before = tag()
    assert tag() == before
    (tmp_path / "operators.py").write_text("sign = -1")
    assert tag() != before
    assert _compiler_tag._own_tag() in torch.compiler.config.cache_key_tag
    assert stacked_linear.TILE  # the module whose operator is marked

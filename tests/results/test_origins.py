"""Origins are said once, and every row still has its own."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from hyla import _environment
from hyla.cli import main
from hyla.commands.shared.exits import FAILURE
from hyla.results import origins
from hyla.results.csv_table import read_csv, write_csv
from hyla.results.origins import MissingOriginError, read_with_origins, write_with_origins
from hyla.results.runs import ORIGIN, Row

GPU = {"device": "NVIDIA H200", "torch": "2.11.0+cu130", "cuda": "13.0", "git_commit": "ab12-dirty"}
CPU = {"device": "CPU (x86_64, 1 thread)", "torch": "2.13.0+cpu", "cuda": None, "git_commit": "cd"}


def _rows(*parts: Row, count: int = 3) -> list[Row]:
    return [{**part, "seed": seed, "score": seed / 7} for part in parts for seed in range(count)]


def _files(table: Path) -> set[str]:
    return {path.name for path in (table.parent / "origins").iterdir()}


def test_every_row_gets_its_origin_back(tmp_path: Path):
    path = tmp_path / "t.csv"
    rows = _rows(GPU, CPU)
    write_with_origins(rows, path)
    assert list(read_csv(path)[0]) == ["origin", "seed", "score"]
    assert len(_files(path)) == 2
    back = read_with_origins(path)
    nothing = dict.fromkeys(ORIGIN)
    assert back == [{**nothing, **row, "cuda": row["cuda"] and 13.0} for row in rows]
    write_with_origins(back, path)  # as merging new rows into a table does
    assert read_with_origins(path) == back
    assert len(_files(path)) == 2


def test_rows_without_an_origin_stay_as_they_are(tmp_path: Path):
    path = tmp_path / "curves.csv"
    write_with_origins(_rows({}), path)
    assert read_with_origins(path) == read_csv(path) == _rows({})
    assert read_with_origins(tmp_path / "none.csv") == []
    write_with_origins([*_rows({}), *_rows(CPU)], path)
    assert [row["device"] for row in read_with_origins(path)] == [None] * 3 + [CPU["device"]] * 3


def test_tables_that_say_it_in_every_row_are_read_and_rewritten(tmp_path: Path):
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    write_csv(_rows(GPU), old)
    rows = read_with_origins(old)
    assert [row["device"] for row in rows] == [GPU["device"]] * 3
    write_with_origins(_rows(GPU), new)
    write_with_origins(rows, old)
    assert old.read_text() == new.read_text()  # CUDA came back as a number, and is the same one
    assert len(_files(old)) == 1


def test_rows_of_both_kinds_in_one_table(tmp_path: Path):
    path = tmp_path / "t.csv"
    write_with_origins(_rows(GPU), path)
    write_csv([*read_csv(path), *_rows(CPU)], path)
    devices = [GPU["device"]] * 3 + [CPU["device"]] * 3
    assert [row["device"] for row in read_with_origins(path)] == devices


def test_what_two_machines_measured_joins_by_copying(tmp_path: Path):
    for name, origin in (("a", GPU), ("b", CPU)):
        write_with_origins(_rows(origin), tmp_path / name / f"{name}.csv")
        shutil.copytree(tmp_path / name, tmp_path / "both", dirs_exist_ok=True)
    for name, origin in (("a", GPU), ("b", CPU)):
        rows = read_with_origins(tmp_path / "both" / f"{name}.csv")
        assert {row["device"] for row in rows} == {origin["device"]}


def test_a_crash_leaves_a_table_with_its_origins(tmp_path: Path, monkeypatch):
    path = tmp_path / "t.csv"
    write_with_origins(_rows(GPU), path)
    before = read_with_origins(path)
    real_write = origins.write_csv
    for writes_done in (0, 1):  # killed before the new origin is written, and before the table is
        written: list[Path] = []

        def write(rows: list[Row], file: Path, written=written, limit=writes_done) -> None:
            if len(written) == limit:
                raise KeyboardInterrupt
            written.append(file)
            real_write(rows, file)

        monkeypatch.setattr(origins, "write_csv", write)
        with pytest.raises(KeyboardInterrupt):
            write_with_origins(_rows(GPU, CPU), path)
        assert len(written) == writes_done
        assert read_with_origins(path) == before


def test_a_table_without_its_origins_is_refused(tmp_path: Path, capsys):
    path = tmp_path / "paper" / "tableA2.csv"
    write_with_origins(_rows(GPU), path)
    [lost] = (path.parent / "origins").iterdir()
    lost.unlink()
    with pytest.raises(MissingOriginError, match=r"tableA2\.csv has rows of origin .* copy the"):
        read_with_origins(path)
    assert main(["report", "--out", str(tmp_path)]) == FAILURE
    assert str(lost) in capsys.readouterr().err


def test_names_of_origins_survive_csv(tmp_path: Path):
    """Of hexadecimal digits alone, some would come back as numbers."""
    rows = [{"git_commit": f"commit {i}", "i": i} for i in range(200)]
    write_with_origins(rows, tmp_path / "t.csv")
    back = read_with_origins(tmp_path / "t.csv")
    assert [row["git_commit"] for row in back] == [row["git_commit"] for row in rows]


def _commit_said_by(source: Path) -> str | None:
    """What a copy of the module says, with nothing remembered."""
    spec = importlib.util.spec_from_file_location("copied_environment", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.git_commit()


class _Copy:
    """A tree with that module, and what git does in it."""

    def __init__(self, folder: Path):
        self.folder, self.package = folder, folder / "src" / "hyla"
        self.package.mkdir(parents=True)
        self.source = Path(shutil.copy(_environment.__file__, self.package))
        (folder / ".gitignore").write_text("__pycache__/\n")

    def git(self, *command: str) -> None:
        who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        subprocess.run(["git", *who, *command], cwd=self.folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_that_is_given_is_recorded_as_given(tmp_path: Path, monkeypatch):
    """Of a copy with another history, or with none, whoever copied it knows the commit."""
    monkeypatch.delenv("HYLA_COMMIT", raising=False)
    copy = _Copy(tmp_path)
    assert _commit_said_by(copy.source) is None
    monkeypatch.setenv("HYLA_COMMIT", "ab12")
    assert _commit_said_by(copy.source) == "ab12"
    copy.git("init")
    copy.git("add", ".")
    copy.git("commit", "-m", "another history")
    assert _commit_said_by(copy.source) == "ab12"
    (copy.package / "rule.py").write_text("")  # a change to that history, not to the commit
    assert _commit_said_by(copy.source) == "ab12"
    monkeypatch.setenv("HYLA_COMMIT", "")
    assert origins.is_dirty(_commit_said_by(copy.source))


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_has_all_files_of_the_package_or_is_dirty(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("HYLA_COMMIT", raising=False)
    copy = _Copy(tmp_path)
    git, package, source = copy.git, copy.package, copy.source

    def is_dirty() -> bool:
        return origins.is_dirty(_commit_said_by(source))

    git("init")
    git("config", "status.showUntrackedFiles", "no")
    git("add", ".")
    git("commit", "-m", "all")
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "old.pyc").write_bytes(b"")
    (tmp_path / "notes.md").write_text("computes nothing")
    assert not is_dirty()
    (package / "rule.py").write_text("")
    assert is_dirty()
    git("add", ".")
    assert is_dirty()
    git("commit", "-m", "rule")
    assert not is_dirty()
    source.write_text(source.read_text() + "# edited\n")
    assert is_dirty()

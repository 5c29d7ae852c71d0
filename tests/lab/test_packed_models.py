"""`hyla models`: what is packed opens as the runs it was made of, and its manifest is true."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from hyla.cli import main
from hyla.commands.shared.exits import USAGE
from hyla.explorer.gallery import open_gallery
from hyla.results.subjects import Subject
from hyla.training import load_run

_SMOKE = ("--scale", "smoke", "--precision", "float32")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Two rows of Table A1 on fuzzy logic, two seeds of each, trained for seconds."""
    folder = tmp_path_factory.mktemp("packed")
    only = ("--only", "task_name=fuzzy", "model.attention=hyla,softmax", "model.feed_forward=gelu")
    store = ("--out", str(folder / "store"), "--root", str(folder / "runs"), "--no-report")
    assert main(["reproduce", "tableA1", "--scale", "smoke", "--no-search", *only, *store]) == 0
    return folder / "runs"


@pytest.fixture(scope="module")
def packed(root: Path) -> Path:
    out = root.parent / "models"
    assert main(["models", str(out), "--root", str(root), *_SMOKE]) == 0
    return out


def test_packed_runs_open_as_the_runs_do(root: Path, packed: Path):
    names = sorted(path.name for path in packed.iterdir() if path.is_dir())
    assert [name.rpartition("-")[0] for name in names] == ["fuzzy-hyla", "fuzzy-softmax"]
    for name in names:
        ours, theirs = load_run(packed / name), load_run(root / name)
        assert (ours.config, ours.step) == (theirs.config, theirs.step)
        for key, tensor in theirs.parameters.items():
            assert ours.parameters[key].dtype == torch.float16
            torch.testing.assert_close(ours.parameters[key].float(), tensor, rtol=1e-3, atol=1e-6)
        assert len(theirs.config.members) == 2
        for member in range(2):
            subject = Subject.of_run(packed / name, member)  # what `hyla latents` looks at
            task = subject.task
            batch = task.batch("test", seed=subject.seed, index=0, batch_size=4)
            expected = theirs.model(member)(batch.inputs)
            torch.testing.assert_close(subject.model(batch.inputs), expected, rtol=0.02, atol=0.02)


def test_the_explorer_opens_the_folder(packed: Path):
    runs = [path for path in sorted(packed.iterdir()) if path.is_dir()]
    shown = list(open_gallery(runs).subjects)
    assert shown[:4] == [f"{run.name}:{i}" for run in runs for i in range(2)]


def test_half_of_the_bytes_and_no_moments(root: Path, packed: Path):
    for run in (path for path in packed.iterdir() if path.is_dir()):
        [ours] = run.glob("checkpoint-*")
        [theirs] = (root / run.name).glob("checkpoint-*")
        assert ours.stat().st_size < 0.7 * theirs.stat().st_size


def test_the_manifest_has_the_hash_of_every_file(packed: Path):
    manifest = json.loads((packed / "manifest.json").read_text())
    assert manifest["conditions"] == "smoke"
    assert [run["row"] for run in manifest["runs"]] == ["fuzzy hyla", "fuzzy softmax"]
    for run in manifest["runs"]:
        assert [member["seed"] for member in run["members"]] == [0, 1]
        files = {path.name: path for path in (packed / run["run"]).iterdir()}
        assert run["files"].keys() == files.keys()
        for name, path in files.items():
            assert run["files"][name] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_packing_twice_gives_the_same(root: Path, packed: Path):
    before = (packed / "manifest.json").read_bytes()
    assert main(["models", str(packed), "--root", str(root), *_SMOKE]) == 0
    assert (packed / "manifest.json").read_bytes() == before


def test_runs_are_not_packed_onto_themselves(root: Path, capsys):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert main(["models", f"{root}/.", "--root", str(root), *_SMOKE]) == USAGE
    assert "holds the runs themselves" in " ".join(capsys.readouterr().err.split())
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_error_while_packing_is_not_the_users(root: Path, tmp_path: Path, monkeypatch):
    def broken(*args):
        raise ValueError("of the computation")

    monkeypatch.setattr("hyla.lab.models._pack", broken)
    with pytest.raises(ValueError, match="of the computation"):
        main(["models", str(tmp_path / "out"), "--root", str(root), *_SMOKE])


def test_rows_that_are_missing_are_named(root: Path, tmp_path: Path, capsys):
    assert main(["models", str(tmp_path / "out"), "--root", str(root), *_SMOKE]) == 0
    told = capsys.readouterr().out
    assert "Not finished" in told
    assert "fuzzy linear" in told
    assert "fuzzy hyla," not in told
    assert main(["models", str(tmp_path / "none"), "--root", str(root)]) == USAGE
    assert "hyla reproduce tableA1" in " ".join(capsys.readouterr().err.split())

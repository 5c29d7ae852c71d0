"""A checkpoint in a directory: incomplete ones are recognised, whole ones never moved."""

import json
from pathlib import Path

import pytest
import torch

from hyla.training.run.checkpoints.sharded import ShardedCheckpoints


class Killed(BaseException):
    """The process ends here."""


def save(directory: Path, step: int) -> None:
    tensors = {"weights": torch.full((3,), float(step))}
    ShardedCheckpoints(directory, "mine").save(step, tensors, {})


def newest_intact(directory: Path) -> int | None:
    found = ShardedCheckpoints(directory, "mine").latest()
    return None if found is None else found.step


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_half_written_and_foreign_ones_are_not_used(tmp_path):
    state = {"hyla_checkpoint": "language-1", "meta": {}, "files": {}, "fingerprint": "mine"}
    for name, content in {
        "checkpoint-000004": state | {"step": 4, "fingerprint": "another"},
        "checkpoint-000003": state | {"step": 3, "hyla_checkpoint": "0"},
        "checkpoint-000002": state | {"step": 2, "files": {"shard": "0"}},
        "checkpoint-000001": None,
        ".checkpoint-000009.tmp": None,
    }.items():
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "state.json").write_text(json.dumps(content))
    warnings: list[str] = []
    assert ShardedCheckpoints(tmp_path, "mine", say=warnings.append).latest() is None
    assert "it belongs to another run" in warnings[0]
    assert "not a checkpoint that this version of hyla wrote" in warnings[1]
    assert "incomplete or damaged" in warnings[2]
    assert "incomplete or damaged" in warnings[3]


def test_an_intact_one_of_the_same_step_is_neither_moved_nor_written_again(tmp_path, monkeypatch):
    save(tmp_path, 5)
    monkeypatch.setattr(ShardedCheckpoints, "_write", lambda *_: pytest.fail("it was written"))
    save(tmp_path, 5)
    assert newest_intact(tmp_path) == 5


@pytest.mark.parametrize("moment", ["rename", "remove"])
def test_killed_while_it_replaces_a_damaged_one(tmp_path, monkeypatch, moment):
    def killed(*_):
        raise Killed

    for step in (4, 5):
        save(tmp_path, step)
    (tmp_path / "checkpoint-000005" / "state.json").unlink()
    with monkeypatch.context() as patch:
        if moment == "rename":
            patch.setattr("pathlib.Path.rename", killed)
        else:
            patch.setattr("hyla.training.run.checkpoints.base.shutil.rmtree", killed)
        with pytest.raises(Killed):
            save(tmp_path, 5)
    assert newest_intact(tmp_path) == (4 if moment == "rename" else 5)
    save(tmp_path, 5)
    assert newest_intact(tmp_path) == 5
    save(tmp_path, 6)
    assert names(tmp_path) == ["checkpoint-000005", "checkpoint-000006"]


def test_killed_while_an_old_one_is_removed(tmp_path, monkeypatch):
    """What is left of it is a temporary, and not taken for one that was damaged."""

    def killed_half_way(path):
        (path / "state.json").unlink()
        raise Killed

    for step in (4, 5):
        save(tmp_path, step)
    with monkeypatch.context() as patch:
        patch.setattr("hyla.training.run.checkpoints.base.shutil.rmtree", killed_half_way)
        with pytest.raises(Killed):
            save(tmp_path, 6)
    warnings: list[str] = []
    checkpoints = ShardedCheckpoints(tmp_path, "mine", say=warnings.append)
    assert checkpoints.latest() is not None
    checkpoints.save(7, {"weights": torch.zeros(3)}, {})
    assert names(tmp_path) == ["checkpoint-000006", "checkpoint-000007"]
    assert warnings == []

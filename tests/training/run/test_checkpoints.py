"""Checkpoints of both layouts: found, kept, passed over and removed by the same rules."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hyla.training.run.checkpoints.base import Checkpoints, newest_step
from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.checkpoints.sharded import ShardedCheckpoints

RUN, OTHER_RUN = "f" * 64, "0" * 64
GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoints"


@pytest.fixture(params=[FileCheckpoints, ShardedCheckpoints], ids=["file", "sharded"])
def layout(request) -> type[Checkpoints]:
    return request.param


def some_tensors(value: float = 1.0) -> dict[str, Tensor]:
    return {"parameters/weights": torch.full((3, 5), float(value)), "losses": torch.ones(2)}


class Kept:
    """The checkpoints in a directory, and all that was said of them."""

    def __init__(self, directory: Path, layout: type[Checkpoints]):
        self.directory, self.layout = directory, layout
        self.said: list[str] = []
        self.checkpoints = self.of(RUN)

    def of(self, run: str) -> Checkpoints:
        return self.layout(self.directory, run, say=self.said.append)

    def save(self, *steps: int) -> list[Path]:
        return [self.checkpoints.save(step, some_tensors(step), {"at": step}) for step in steps]

    def steps(self) -> list[int]:
        """What lies there, by the names."""
        stems = [path.name.removesuffix(self.layout.suffix) for path in self.directory.iterdir()]
        return sorted(int(stem.removeprefix("checkpoint-")) for stem in stems)

    def path(self, step: int) -> Path:
        return self.directory / f"checkpoint-{step:06d}{self.layout.suffix}"

    def damage(self, step: int) -> bytes:
        """Flip a bit of the tensors; return what is then there."""
        path = self.path(step)
        file = path if path.is_file() else next(path.glob("*.safetensors"))
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        return bytes(content)

    def newest_intact(self) -> int | None:
        found = self.layout(self.directory, RUN).latest()
        return None if found is None else found.step


@pytest.fixture
def kept(tmp_path, layout) -> Kept:
    return Kept(tmp_path, layout)


def test_what_was_saved_comes_back(kept):
    (path,) = kept.save(123)
    assert path == kept.path(123)
    found = kept.checkpoints.latest()
    assert found is not None
    assert (found.path, found.step, found.meta) == (path, 123, {"at": 123})
    read = {name: torch.zeros_like(tensor) for name, tensor in some_tensors().items()}
    kept.checkpoints.read(found, read)
    for name, tensor in some_tensors(123).items():
        assert read[name].equal(tensor), name
    parameters = kept.checkpoints.parameters(found)
    assert parameters.keys() == {"weights"}
    assert parameters["weights"].equal(torch.full((3, 5), 123.0))
    assert newest_step(kept.directory) == 123
    assert kept.said == []


@pytest.mark.parametrize("change", ["more", "fewer", "shape"])
def test_other_tensors_than_the_model_s_are_refused(kept, change):
    kept.save(1)
    found = kept.checkpoints.latest()
    assert found is not None
    own = some_tensors()
    if change == "more":
        own["another"] = torch.zeros(2)
    else:
        del own["losses"]
    if change == "shape":
        own["losses"] = torch.zeros(3)
    with pytest.raises(ValueError, match="models of another shape, or to another version"):
        kept.checkpoints.read(found, own)


def test_no_checkpoint_is_no_cause_for_a_warning(kept):
    assert kept.checkpoints.latest() is None
    assert kept.layout(kept.directory / "missing", RUN, say=kept.said.append).latest() is None
    assert newest_step(kept.directory / "missing") is None
    assert kept.said == []


def test_the_last_two_are_kept(kept):
    kept.save(999_999, 10, 20, 30)  # a step beyond is not older, and stays
    assert kept.steps() == [20, 30, 999_999]
    kept.save(1_000_000)
    assert kept.steps() == [999_999, 1_000_000]
    assert kept.newest_intact() == newest_step(kept.directory) == 1_000_000
    assert kept.said == []


def test_a_damaged_one_is_left_until_a_later_one_makes_it_useless(kept):
    kept.save(10, 20)
    damaged = kept.damage(20)
    resumed = kept.of(RUN)
    found = resumed.latest()
    assert found is not None
    assert found.step == 10
    assert f"{kept.path(20)} is not used: damaged" in kept.said[0]
    assert "It is left in place" in kept.said[0]
    assert "Falling back to the checkpoint of step 10" in kept.said[1]
    assert kept.steps() == [10, 20]

    kept.said.clear()
    resumed.save(15, some_tensors(), {})  # before it, so that it may still be looked at
    assert kept.steps() == [10, 15, 20]
    path = kept.path(20)
    file = path if path.is_file() else next(path.glob("*.safetensors"))
    assert file.read_bytes() == damaged
    assert kept.said == []
    resumed.save(25, some_tensors(), {})
    assert kept.steps() == [15, 25]
    assert kept.said == [
        f"{path} is damaged, and is removed: {kept.path(25).name} is newer and intact."
    ]


def test_a_damaged_one_is_replaced_by_an_intact_one_of_its_step(kept):
    kept.save(10, 20)
    kept.damage(20)
    again = kept.of(RUN)
    again.save(20, some_tensors(), {})
    assert kept.steps() == [10, 20]
    assert kept.newest_intact() == 20
    assert kept.said == [f"{kept.path(20)} is damaged, and is replaced."]


def test_a_damaged_one_is_none_to_fall_back_on(kept):
    kept.save(1, 2)
    kept.damage(2)
    kept.of(RUN).save(3, some_tensors(), {})
    assert kept.steps() == [1, 3]
    kept.damage(3)
    kept.of(RUN).save(4, some_tensors(), {})
    assert kept.steps() == [1, 4]
    kept.of(RUN).save(5, some_tensors(), {})
    assert kept.steps() == [4, 5]


def test_bad_ones_of_later_steps_do_not_push_out_good_ones(kept):
    kept.save(8, 9)
    for step in (8, 9):
        kept.damage(step)
    for step in (1, 2, 3):
        kept.save(step)
        assert kept.newest_intact() == step
    assert kept.steps() == [2, 3, 8, 9]


def test_if_all_are_bad_each_is_reported_and_none_deleted(kept):
    for path in kept.save(1, 2):
        kept.damage(int(path.name[11:17]))
    assert kept.of(RUN).latest() is None
    assert len(kept.said) == 3
    assert "nothing to resume from" in kept.said[-1]
    assert kept.steps() == [1, 2]


def test_those_of_others_are_neither_used_nor_deleted(kept):
    foreign = kept.of(OTHER_RUN).save(2, some_tensors(2), {})
    (renamed,) = kept.save(1)
    renamed.rename(kept.path(3))
    assert kept.checkpoints.latest() is None
    for path, reason in [
        (foreign, "it belongs to another run (config 000000000000, this run's is ffffffffffff)"),
        (kept.path(3), "its name does not match its content, step 1"),
    ]:
        assert any(f"{path} is not used: {reason}" in said for said in kept.said), path
    kept.save(4, 5, 6)
    assert kept.steps() == [2, 3, 5, 6]

    kept.save(2)  # where its name is needed
    aside = foreign.with_name(f"{foreign.name}.set-aside-1")
    aside.rename(kept.path(7))
    shutil.rmtree(foreign) if foreign.is_dir() else foreign.unlink()
    kept.path(7).rename(foreign)
    found = kept.of(OTHER_RUN).latest()
    assert found is not None
    assert found.step == 2


def test_a_name_that_is_none_of_a_checkpoint_is_nothing(kept):
    for name in ("checkpoint-best", "checkpoint-12", "checkpoint-000012.set-aside-1"):
        (kept.directory / f"{name}{kept.layout.suffix}").write_bytes(b"")
    assert newest_step(kept.directory) is None
    assert kept.checkpoints.latest() is None
    kept.save(1)
    assert len(list(kept.directory.iterdir())) == 4
    assert kept.said == []


def test_what_is_not_even_of_its_kind_is_not_ours(kept):
    path = kept.path(5)
    path.mkdir() if kept.layout.suffix else path.write_bytes(b"not a directory")
    kept.save(6, 7)
    assert kept.steps() == [5, 6, 7]
    kept.save(5)
    assert kept.newest_intact() == 7
    assert path.with_name(f"{path.name}.set-aside-1").exists()
    assert kept.said == []


def test_temporaries_of_killed_processes_go(kept):
    (kept.directory / ".checkpoint-000001.tmp").mkdir()
    (kept.directory / ".checkpoint-000001.tmp" / "shard.safetensors").write_bytes(b"half")
    for name in (".checkpoint-000001.safetensors", ".metrics.jsonl"):
        (kept.directory / f"{name}.tmp-4194304").write_bytes(b"half")
    kept.save(2)
    assert [path.name for path in kept.directory.iterdir()] == [kept.path(2).name]


def test_what_is_known_to_be_good_is_not_read_again(kept, monkeypatch):
    kept.save(1, 2)
    checked = []
    check = kept.layout._check
    monkeypatch.setattr(
        kept.layout, "_check", lambda self, path: checked.append(path.name) or check(self, path)
    )
    kept.save(3, 4)
    assert checked == []
    kept.of(RUN).save(5, some_tensors(), {})
    assert checked == [kept.path(4).name, kept.path(3).name]


def test_one_of_an_earlier_version_loads(tmp_path, layout):
    """Written by hyla as it was before the two layouts shared any code."""
    name = f"checkpoint-000012{layout.suffix}"
    copy = shutil.copytree if (GOLDEN / name).is_dir() else shutil.copy
    copy(GOLDEN / name, tmp_path / name)
    kept = Kept(tmp_path, layout)
    found = kept.checkpoints.latest()
    assert found is not None
    assert (found.step, found.meta, kept.said) == (12, {"seconds": 1.5}, [])
    own = {"parameters/weight": torch.zeros(2, 3), "step": torch.tensor(0)}
    kept.checkpoints.read(found, own)
    assert own["parameters/weight"].equal(torch.arange(6.0).reshape(2, 3))
    assert own["step"] == 12

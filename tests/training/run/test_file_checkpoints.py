"""A checkpoint in a file: whole or recognised as broken, whatever happens while it is written."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from hyla.training.run.checkpoints.file import FileCheckpoints
from hyla.training.run.errors import CheckpointError

RUN = "f" * 64
OTHER_RUN = "0" * 64


def some_tensors(value: float = 1.0) -> dict[str, Tensor]:
    return {"weights": torch.full((3, 5), value), "step": torch.tensor(7)}


def save(
    directory: Path, step: int, tensors: dict[str, Tensor], meta: dict[str, Any], run: str = RUN
) -> Path:
    return FileCheckpoints(directory, run).save(step, tensors, meta)


def save_steps(directory: Path, *steps: int) -> list[Path]:
    return [save(directory, step, some_tensors(step), {"step": step}) for step in steps]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def never(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    flat = torch.randn(24)
    tensors = {
        "float32": torch.randn(4, 3),
        "bfloat16": torch.randn(5).bfloat16(),
        "int64 scalar": torch.tensor(2**40),
        "bool": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "view a of one buffer": flat[:12].view(3, 4),
        "view b of one buffer": flat[12:],
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    meta = {"diverged": {"seed0": 12}, "rates": [1e-3, 0.1]}
    path = save(tmp_path, 123, tensors, meta)
    assert path.name == "checkpoint-000123.safetensors"

    loaded = FileCheckpoints(tmp_path, RUN, say=never).latest()
    assert loaded is not None
    assert (loaded.path, loaded.step, loaded.meta) == (path, 123, meta)
    assert loaded.tensors is not None
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        torch.testing.assert_close(
            loaded.tensors[name], tensor.detach(), rtol=0, atol=0, equal_nan=True
        )


def test_a_truncated_file_is_reported_kept_and_passed_over(tmp_path: Path) -> None:
    _, newest = save_steps(tmp_path, 1, 2)
    content = newest.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 1]:
        newest.write_bytes(content[:length])
        warnings: list[str] = []
        loaded = FileCheckpoints(tmp_path, RUN, say=warnings.append).latest()
        assert loaded is not None, length
        assert loaded.step == 1, length
        assert str(newest) in warnings[0], length
        assert "truncated" in warnings[0], length
        assert "step 1" in warnings[1], length
        assert newest.read_bytes() == content[:length]


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    (path,) = save_steps(tmp_path, 1)
    content = path.read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        loaded = FileCheckpoints(tmp_path, RUN, say=lambda message: None).latest()
        # A space that pads the JSON header may become another white space; nothing else may pass.
        if loaded is not None:
            assert content[position : position + 1] == b" ", position
            assert loaded.tensors is not None
            assert torch.equal(loaded.tensors["weights"], some_tensors()["weights"])


def test_a_foreign_checkpoint_is_not_used(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    foreign = save(tmp_path, 2, some_tensors(), {}, OTHER_RUN)
    plain = tmp_path / "checkpoint-000003.safetensors"
    safetensors.torch.save_file(some_tensors(), plain)
    pickled = tmp_path / "checkpoint-000004.safetensors"
    torch.save(some_tensors(), pickled)
    renamed = tmp_path / "checkpoint-000005.safetensors"
    renamed.write_bytes((tmp_path / "checkpoint-000001.safetensors").read_bytes())

    warnings: list[str] = []
    loaded = FileCheckpoints(tmp_path, RUN, say=warnings.append).latest()
    assert loaded is not None
    assert loaded.step == 1
    for path, reason in [
        (foreign, "belongs to another run"),
        (plain, "not a checkpoint that this version of hyla wrote"),
        (pickled, "not a safetensors file"),
        (renamed, "name does not match"),
    ]:
        assert any(str(path) in warning and reason in warning for warning in warnings), path
        assert path.exists()


KILL_SCRIPT = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from hyla import _files
from hyla.training.run.checkpoints.file import FileCheckpoints

torch.set_num_threads(1)
directory, run = Path(sys.argv[1]), "f" * 64
checkpoints = FileCheckpoints(directory, run)
megabytes = torch.arange(4_000_000, dtype=torch.int32)

def write_until_killed(first_step, die_in):
    if die_in is not None:
        def die(*_, **__):
            os.kill(os.getpid(), signal.SIGKILL)
        owner, name = die_in
        setattr(owner, name, die)
    step, give_up = first_step, time.monotonic() + 20  # outlives no parent that died
    while time.monotonic() < give_up:
        step += 1
        checkpoints.save(step, {"x": megabytes + step}, {})
    os._exit(1)

warnings, steps, leftovers, longest = [], [0], 0, 0.3
# Where a write can be interrupted, exactly; then at eight random moments.
moments = [(os, "fsync"), (os, "replace"), (_files, "sync_directory"),
           (FileCheckpoints, "_clear_up_after")] + [None] * 8
for die_in in moments:
    child = os.fork()
    if child == 0:
        write_until_killed(steps[-1], die_in)
    if die_in is None:
        time.sleep(random.uniform(0.02, longest))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), die_in
    leftovers += len(list(directory.glob(".*.tmp-*")))
    loaded = FileCheckpoints(directory, run, say=warnings.append).latest()
    if loaded is not None:
        assert torch.equal(loaded.tensors["x"], megabytes + loaded.step)
        assert loaded.step >= steps[-1]
        steps.append(loaded.step)
    if steps[-1] <= 2 and len(moments) < 24:  # a busy machine finishes no write in so short a time
        moments.append(None)
        longest = min(1.5 * longest, 10)
checkpoints.save(steps[-1] + 1, {"x": megabytes}, {})
print(json.dumps({"warnings": warnings, "steps": steps, "leftovers": leftovers}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_minus_nine_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", KILL_SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert outcome["warnings"] == []
    assert outcome["steps"][-1] > 2
    assert outcome["leftovers"] > 0, "no kill hit a write: the test has lost its point"
    assert len(names(tmp_path)) == 2


def test_a_full_disk_leaves_the_last_checkpoint_intact(tiny_disk: Path) -> None:
    save_steps(tiny_disk, 1)
    with pytest.raises(
        CheckpointError, match=r"Disk full: .* needs 0\.4 MB in .*Earlier checkpoints are"
    ):
        save(tiny_disk, 2, {"large": torch.zeros(100_000)}, {})
    assert names(tiny_disk) == ["checkpoint-000001.safetensors"]
    loaded = FileCheckpoints(tiny_disk, RUN, say=never).latest()
    assert loaded is not None
    assert loaded.step == 1


def test_a_disk_filled_by_a_killed_write_recovers(tiny_disk: Path) -> None:
    (tiny_disk / ".checkpoint-000001.safetensors.tmp-4194304").write_bytes(bytes(200_000))
    save(tiny_disk, 1, {"medium": torch.zeros(40_000)}, {})
    assert names(tiny_disk) == ["checkpoint-000001.safetensors"]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "Disk full"),
        (errno.EDQUOT, "quota is used up"),
        (errno.EIO, "Cannot write the checkpoint"),
    ],
)
def test_a_failed_sync_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    save_steps(tmp_path, 1)

    def fail(descriptor: int) -> None:
        raise OSError(number, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(CheckpointError, match=message):
            save_steps(tmp_path, 2)
    assert names(tmp_path) == ["checkpoint-000001.safetensors"]

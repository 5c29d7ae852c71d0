"""Run directories: one owner at a time, and metrics that a resumed run completes exactly."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from hyla.training.identity import fingerprint
from hyla.training.run import directory
from hyla.training.run.directory import RunDirectory
from hyla.training.run.errors import RunBusyError, RunDirectoryError
from hyla.training.run.reading import read_provenance

CONFIG = {"task": {"name": "fuzzy", "terms": 32}, "lr": [1e-3, 3e-4], "seeds": 3}


def test_the_fingerprint_is_canonical() -> None:
    assert fingerprint({"a": 1, "b": [0.1]}) == fingerprint({"b": (0.1,), "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    # Pinned: finished runs are found again by it.
    assert fingerprint(CONFIG).startswith("06b4a7a656f7")
    with pytest.raises(ValueError, match="finite"):
        fingerprint({"a": math.nan})


def test_the_directory_says_what_the_run_is(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "runs", "fuzzy-hyla", CONFIG) as run:
        assert run.path == tmp_path / "runs" / f"fuzzy-hyla-{fingerprint(CONFIG)[:12]}"
        assert run.fingerprint == fingerprint(CONFIG)
        assert run.finished is None
        assert json.loads((run.path / "lock").read_text())["pid"] == os.getpid()
    assert json.loads((run.path / "config.json").read_text()) == CONFIG
    assert (run.path / "lock").read_text() == ""


@pytest.mark.parametrize("name", ["", "../elsewhere", "a/b", ".hidden", "two words"])
def test_a_name_that_is_no_directory_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        RunDirectory.open(tmp_path, name, CONFIG)


@pytest.mark.parametrize("content", ['{"seeds": 4}', "not JSON", ""])
def test_another_config_in_the_directory_is_an_error(tmp_path: Path, content: str) -> None:
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        pass
    (run.path / "config.json").write_text(content)
    for _ in range(2):  # the second time too: the lock was released
        with pytest.raises(RunDirectoryError, match="not the config of this run"):
            RunDirectory.open(tmp_path, "run", CONFIG)
    assert (run.path / "config.json").read_text() == content


def test_records_come_back(tmp_path: Path) -> None:
    records = [
        {"step": 0, "loss": [1.5, 0.1 + 0.2]},
        {"step": 10, "ood/r2": 0.25, "split": "ood", "deep": [{"a~b/c": [1.0, 2]}]},
    ]
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        for record in records:
            run.log(record)
        run.sync()
        assert run.metrics() == records
        with pytest.raises(ValueError, match="integer 'step'"):
            run.log({"loss": 1.0})
        with pytest.raises(ValueError, match="reserved"):
            run.log({"step": 1, "nonfinite": {}})
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        assert run.metrics() == records


def test_nan_and_infinity_survive_as_valid_json(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        run.log({"step": 1, "loss": (0.5, math.nan), "deep": {"a~b/c": [math.inf, -math.inf]}})
        line = (run.path / "metrics.jsonl").read_text()
        assert json.loads(line, parse_constant=refuse) == {
            "step": 1,
            "loss": [0.5, None],
            "deep": {"a~b/c": [None, None]},
            "nonfinite": {"/loss/1": "nan", "/deep/a~0b~1c/0": "inf", "/deep/a~0b~1c/1": "-inf"},
        }
        (record,) = run.metrics()
        assert math.isnan(record["loss"][1])
        assert record["deep"] == {"a~b/c": [math.inf, -math.inf]}
        assert record.keys() == {"step", "loss", "deep"}


def test_a_resumed_run_ends_with_the_same_file(tmp_path: Path) -> None:
    def log_steps(run: RunDirectory, first: int, last: int) -> None:
        for step in range(first, last + 1):
            run.log({"step": step, "loss": 1 / (step + 1)})
            run.log({"step": step, "split": "ood", "r2": math.nan})

    with RunDirectory.open(tmp_path / "whole", "run", CONFIG) as whole:
        log_steps(whole, 0, 10)
    expected = (whole.path / "metrics.jsonl").read_bytes()
    for torn in [b"", b"{", b'{"step": 8, "loss": 0.1}', b'{"step": 8, "lo\n', b"\0\0\0\n\0"]:
        for checkpoint_step in (-1, 0, 5, 7):
            root = tmp_path / f"{torn.hex()}{checkpoint_step}"
            with RunDirectory.open(root, "run", CONFIG) as run:
                log_steps(run, 0, 7)
            with (run.path / "metrics.jsonl").open("ab") as file:
                file.write(torn)
            with RunDirectory.open(root, "run", CONFIG) as run:
                assert len(run.metrics()) == 16
                run.rewind(checkpoint_step)
                log_steps(run, checkpoint_step + 1, 10)
            assert (run.path / "metrics.jsonl").read_bytes() == expected
            assert not list(run.path.glob(".*.tmp-*"))


def test_a_broken_line_in_the_middle_is_for_a_person_to_judge(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        run.log({"step": 1})
        with (run.path / "metrics.jsonl").open("ab") as file:
            file.write(b"{oops\n")
        run.log({"step": 2})
        before = (run.path / "metrics.jsonl").read_bytes()
        for read in (run.metrics, lambda: run.rewind(1)):
            with pytest.raises(RunDirectoryError, match="line 2"):
                read()
        assert (run.path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("content", [b"garbage\n", b"{}\n{}\n", b"garbage", b"\xff\n\xfe\n"])
def test_a_log_that_is_garbage_as_a_whole_is_noticed(tmp_path: Path, content: bytes) -> None:
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        (run.path / "metrics.jsonl").write_bytes(content)
        for read in (run.metrics, lambda: run.rewind(1)):
            with pytest.raises(RunDirectoryError, match="holds no metrics record"):
                read()
        assert (run.path / "metrics.jsonl").read_bytes() == content
        run.rewind(-1)  # trained from the start: everything is logged again
        assert run.metrics() == []


@pytest.mark.parametrize("content", [b"", b'{"ste', b"\0\0\0", b'{"st\0\0'])
def test_the_torn_first_record_of_a_killed_run_is_no_damage(tmp_path: Path, content: bytes) -> None:
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        (run.path / "metrics.jsonl").write_bytes(content)
        assert run.metrics() == []
        run.rewind(1)
        assert (run.path / "metrics.jsonl").read_bytes() == b""


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    summary = {"best": "seed0", "ood r2": [0.9, math.inf]}
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        run.finish(summary)
        assert run.finished == summary
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        assert run.finished == summary


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        run.log({"step": 1})
        file = run._metrics

        class HalfFull:
            def write(self, line: bytes) -> int:
                return file.write(line[: len(line) // 2])

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

        with monkeypatch.context() as patch:
            patch.setattr(run, "_metrics", HalfFull())
            with pytest.raises(RunDirectoryError, match="Disk full"):
                run.log({"step": 2})
        run.log({"step": 3})
        assert run.metrics() == [{"step": 1}, {"step": 3}]


HOLD = """
import json, sys, time
from hyla.training.run.directory import RunDirectory
with RunDirectory.open(sys.argv[1], "run", json.loads(sys.argv[2])) as run:
    run.log({"step": 1})
    print("holding", flush=True)
    time.sleep(60)
"""


@contextmanager
def another_process_holding(root: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", HOLD, str(root), json.dumps(CONFIG)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
            yield holder
        finally:
            holder.kill()


@pytest.mark.integration
def test_a_second_process_is_told_who_has_the_run_and_a_kill_frees_it(tmp_path: Path) -> None:
    with another_process_holding(tmp_path) as holder:
        with pytest.raises(RunBusyError, match=rf"trained by process {holder.pid} on .*, since 20"):
            RunDirectory.open(tmp_path, "run", CONFIG)
        with RunDirectory.open(tmp_path, "run", {**CONFIG, "seeds": 4}):
            pass  # another run in the same place is not affected
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with RunDirectory.open(tmp_path, "run", CONFIG) as run:
            assert run.metrics() == [{"step": 1}]


def test_a_second_opening_in_one_process_is_refused_too(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, "run", CONFIG), pytest.raises(RunBusyError):
        RunDirectory.open(tmp_path, "run", CONFIG)


# --- failures of the file system ----------------------------------------------------------------


def fill(disk: Path) -> Path:
    """Leave no byte on `disk`; deleting the returned file makes room again."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return path


def test_a_run_on_a_full_disk_says_how_to_go_on_and_does(tiny_disk: Path) -> None:
    filler = fill(tiny_disk)
    for _ in range(2):  # the second time too: the lock was released
        with pytest.raises(RunDirectoryError, match=r"Disk full: .*0\.0 MB are free\. Make room"):
            RunDirectory.open(tiny_disk, "run", CONFIG)
    filler.unlink()

    with RunDirectory.open(tiny_disk, "run", CONFIG) as run:
        for step in range(400):
            run.log({"step": step, "loss": 0.5})
        before = (run.path / "metrics.jsonl").read_bytes()
        fill(tiny_disk)
        with pytest.raises(RunDirectoryError, match=r"Disk full: cannot write .*finished\.json"):
            run.finish({"best": 1})
        with pytest.raises(RunDirectoryError, match=r"Disk full: cannot write .*metrics\.jsonl"):
            run.rewind(100)
        assert (run.path / "metrics.jsonl").read_bytes() == before
        with pytest.raises(RunDirectoryError, match=r"Disk full: cannot write .*metrics\.jsonl"):
            run.log({"step": 400, "more than is left of the last page": "x" * 4096})
        filler.unlink()
        run.rewind(399)
        assert len(run.metrics()) == 400
        run.finish({"best": 1})
    assert not list(run.path.glob(".*.tmp-*"))


def test_a_disk_that_fills_while_a_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_atomically", write)
        with pytest.raises(RunDirectoryError, match=r"Disk full: cannot write .*config\.json"):
            RunDirectory.open(tmp_path, "run", CONFIG)
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        with monkeypatch.context() as patch:
            patch.setattr(directory, "write_atomically", write)
            with pytest.raises(RunDirectoryError, match=r"Disk full: .*provenance\.json"):
                run.record_start(torch.device("cpu"))
        run.record_start(torch.device("cpu"))


def test_a_failed_sync_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "injected")

    with RunDirectory.open(tmp_path, "run", CONFIG) as run, monkeypatch.context() as patch:
        patch.setattr(directory.os, "fsync", fail)
        with pytest.raises(RunDirectoryError, match=r"Cannot use .*metrics\.jsonl: .*injected"):
            run.sync()


def test_a_file_where_the_runs_should_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for root in (file, file / "below"):
        with pytest.raises(RunDirectoryError, match=r"file is not a directory\. Keep the runs"):
            RunDirectory.open(root, "run", CONFIG)


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # root, who runs some of these tests, may everything
    with pytest.raises(RunDirectoryError, match=r"Permission denied\. Keep the runs where"):
        RunDirectory.open(tmp_path, "run", CONFIG)


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", '{"nonfinite": {"/a/1": "nan"}}', "\xff"])
def test_a_damaged_summary_says_what_to_do(tmp_path: Path, content: str) -> None:
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        run.finish({"best": 1})
    (run.path / "finished.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(RunDirectoryError, match=r"finished\.json is damaged.*: delete it"):
        RunDirectory.open(tmp_path, "run", CONFIG)
    (run.path / "finished.json").unlink()
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        assert run.finished is None


@pytest.mark.parametrize("content", ["", "{", "{}", "[3]"])
def test_a_damaged_provenance_says_what_to_do(tmp_path: Path, content: str) -> None:
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        (run.path / "provenance.json").write_text(content)
        with pytest.raises(RunDirectoryError, match=r"provenance\.json is damaged.*delete it"):
            run.record_start(torch.device("cpu"))


def test_provenance_says_where_each_start_trained_and_beside_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    with RunDirectory.open(tmp_path, "run", CONFIG) as run:
        assert read_provenance(run.path) == []
        run.record_start(torch.device("cpu"))
        run.record_start(torch.device("cuda"), beside=["another-run"])
    first, second = read_provenance(run.path)
    assert first.keys() >= {"started", "hyla", "torch", "python", "device", "git_commit"}
    assert first["device"].startswith("CPU (")
    assert first["cuda"] is None
    assert "beside" not in first
    assert second["device"] == "a GPU"
    assert second["beside"] == ["another-run"]

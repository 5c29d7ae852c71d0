"""The queue of what is still to be measured: in order, in slices, and carried elsewhere."""

import dataclasses
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lab_queue
import packing
import queue_jobs
from hyla import RECOMMENDED
from hyla.lab.estimate import SPEEDS
from hyla.lab.paper import TABLE_A1
from hyla.lab.plan.reproduction import Reproduction
from hyla.results.csv_table import read_csv
from hyla.results.runs import read_runs
from hyla.training import Interrupted
from hyla.training.language import (
    language_config_from_tree,
    language_run_path,
    train_language,
)
from hyla.training.run.checkpoints.base import newest_step
from hyla.training.run.errors import RunBusyError
from hyla.training.run.lock import take_lock
from tiny_text import tiny_corpus

TOOLS = Path(__file__).parents[3] / "tools"

# Without what a machine with a GPU may lack.
_BARE = """
import runpy, sys
sys.modules |= dict.fromkeys({missing})  # none of them can be imported
sys.argv = {arguments!r}
sys.path[0] = {tools!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def queue(folder: Path, *arguments: str) -> int:
    folders = ("--root", str(folder / "runs"), "--out", str(folder / "store"))
    return lab_queue.main(["--scale", "smoke", "--device", "cpu", *folders, *arguments])


def job_of(name: str) -> Any:
    [job] = [job for job in lab_queue.JOBS if job.name == name]
    return job


def planned(name: str, tmp_path: Path) -> list:
    job = job_of(name)
    return Reproduction(names=job.asked, root=tmp_path, **job.options("paper")).plan()


def test_the_jobs_are_what_is_not_measured_yet_or_not_well(tmp_path: Path):
    def models(name: str) -> int:
        return sum(len(share.config.members) for share in planned(name, tmp_path))

    assert models("quoted-fuzzy") == 4 * 6
    assert models("quoted-sraven") == 2 * 6
    rows = [
        (str(share.config.model.attention), share.config.model.feed_forward)
        for name in ("tableA1-dense", "tableA1-deep", "tableA1-experts")
        for share in planned(name, tmp_path)
    ]
    measured = ("softmax", "linear", "hyla", "hyla_minus_rmshead", "hyla_minus_nonlinearity")
    assert set(rows) == set(TABLE_A1) - {(name, "gelu") for name in measured}
    assert len(rows) == 9
    # Of the cross the paper's own cell is measured; where models are cheap, three seeds are not.
    assert models("cross-data") == 3 * 4 * 3
    assert models("cross-8-layers") == models("cross-16-layers") == 3
    assert models("cross-width") == 2 * 3
    searched = planned("tableA1-search", tmp_path)
    assert {str(share.config.model.attention) for share in searched} == {
        *("softmax", "linear", "hyla", RECOMMENDED)
    }
    assert sum(len(share.config.members) for share in searched) == 4 * 24
    for job in lab_queue.JOBS:
        if isinstance(job, lab_queue.Job):
            assert planned(job.name, tmp_path), job.name
            assert {share.config.precision for share in planned(job.name, tmp_path)} == {"tf32"}


def test_the_first_jobs_are_finished_within_a_command_each(tmp_path: Path):
    first, second = lab_queue.states(lab_queue.JOBS[:2], scale="paper", root=tmp_path, out=None)
    assert max(first.seconds, second.seconds) < 400


def test_what_jobs_share_counts_once(tmp_path: Path):
    only = {"model.attention": [RECOMMENDED]}
    jobs = [lab_queue.Job(name=n, why="", asked=(n,), only=only) for n in ("scale", "codeswap")]
    first, swaps = lab_queue.states(jobs, scale="paper", root=tmp_path, out=tmp_path)
    assert first.model_steps == 3 * (156_250 + 50_000)
    assert first.seconds > 60
    assert (swaps.models, swaps.model_steps, swaps.seconds) == (3, 0, 0)
    [alone] = lab_queue.states(jobs[1:], scale="paper", root=tmp_path, out=tmp_path)
    assert alone.model_steps == 3 * 156_250


def test_what_trains_as_one_costs_less_than_one_after_the_other(tmp_path: Path):
    dense = {"task_name": ["sraven"], "model.feed_forward": ["gelu"]}

    def seconds(*attentions: str) -> float:
        only = dense | {"model.attention": attentions}
        job = lab_queue.Job(name="t", why="", asked=("tableA1",), only=only)
        return lab_queue.states([job], scale="paper", root=tmp_path, out=tmp_path)[0].seconds

    speed = SPEEDS["cuda", "sraven"]
    shared = speed.start_up + speed.latency * 156_250
    apart = seconds("softmax") + seconds("linear")
    assert apart - seconds("softmax", "linear") == pytest.approx(shared, rel=1e-6)


def test_the_queue_goes_on_where_it_stopped(tmp_path: Path, capsys):
    two = ("--only", "tableA1-deep", "--only", "tableA1-experts")
    assert queue(tmp_path, *two, "--max-seconds", "1e-6") == lab_queue.TRY_AGAIN
    assert "stopped at step" in capsys.readouterr().out
    assert queue(tmp_path, *two, "--list") == 0
    shown = capsys.readouterr().out
    assert re.search(r"tableA1-deep +3 +0 +90 ", shown)
    assert re.search(r"tableA1-experts +9 +0 +270 ", shown)

    assert queue(tmp_path, *two) == 0
    assert "1 of 2, tableA1-deep: " in capsys.readouterr().out
    rows = read_csv(tmp_path / "store" / "smoke-tf32" / "models-sraven.csv")
    assert len(rows) == 3 + 9
    assert queue(tmp_path, *two, "--list") == 0
    assert re.search(r"together +12 +12 +0 +0", capsys.readouterr().out)
    # Again: nothing is trained.
    assert queue(tmp_path, *two) == 0
    assert "population" not in capsys.readouterr().out


def test_time_that_is_over_is_left_to_the_next(tmp_path: Path, capsys, monkeypatch):
    clock = iter((0.0, 0.0, 590.0))
    monkeypatch.setattr(lab_queue.time, "monotonic", lambda: next(clock))
    called = []
    monkeypatch.setattr(queue_jobs.lab, "run", lambda *asked, **options: called.append(options))
    jobs = lab_queue.JOBS[:2]
    assert lab_queue.run(jobs, scale="paper", max_seconds=600) == lab_queue.TRY_AGAIN
    assert [options["max_seconds"] for options in called] == [600]
    assert "cross-8-layers and what comes after it is left" in capsys.readouterr().out


def test_what_fails_does_not_keep_others_from_being_run(monkeypatch, capsys):
    called = []

    def fail(self, **options):
        called.append(self)
        raise lab_queue.UnfinishedError("out of memory")

    for kind in (lab_queue.Job, lab_queue.LanguageJob):
        monkeypatch.setattr(kind, "run", fail)
    code = lab_queue.run(lab_queue.JOBS, scale="paper", max_seconds=float("inf"))
    assert code == lab_queue.FAILURE
    assert len(called) == len(lab_queue.JOBS)


def test_a_family_of_jobs_may_be_named(tmp_path: Path, capsys):
    assert [job.name for job in lab_queue._chosen(["cross"])] == [
        *("cross-8-layers", "cross-data", "cross-16-layers", "cross-width")
    ]
    assert queue(tmp_path, "--only", "crosss") == lab_queue.USAGE
    assert "choose from equalscale-fuzzy, cross-8-layers" in capsys.readouterr().err


def test_it_runs_where_little_is_installed(tmp_path: Path):
    pytest.importorskip("sentencepiece")
    tiny_corpus(tmp_path / "runs")
    missing = (
        *("cyclopts", "pandas", "plotly", "matplotlib", "sklearn", "pyarrow", "transformers"),
        *("sentencepiece", "datasets", "submitit"),
    )
    script = str(TOOLS / "lab_queue.py")
    folders = ["--root", str(tmp_path / "runs"), "--out", str(tmp_path / "store")]
    jobs = ["--only", "quoted-sraven", "--only", "quoted-text"]
    arguments = [script, "--scale", "smoke", "--device", "cpu", *jobs, *folders]
    code = _BARE.format(missing=missing, arguments=arguments, tools=str(TOOLS))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(read_csv(tmp_path / "store" / "smoke-tf32" / "models-sraven.csv")) == 2 * 6
    assert "swapping-sraven is left out: it needs pandas" in done.stdout
    text = [run for run in read_runs(tmp_path / "runs") if run.config["task_name"] == "language"]
    assert [run.summary is not None for run in text] == [True, True]


# --- language models -----------------------------------------------------------------------------


def test_text_is_asked_as_figure_6_was_measured():
    """Its runs then have the names of those in the table, and take their place there."""
    table = read_csv(Path(__file__).parents[3] / "results" / "lab" / "paper" / "fig6.csv")
    for tree in job_of("quoted-text").trees("paper"):
        attention, steps = tree["model"]["attention"], tree["steps"]
        size = f"batches of {tree['batch_size']} × {tree['model']['sequence_length']} tokens"
        measured = [
            row
            for row in table
            if (row["attention"], row["precision"]) == (attention, tree["precision"])
            and f"{size}, {steps:,} steps" in row["group"]
            and all(row[name] == value for name, value in tree["member"].items())
        ]
        every = tree["evaluation"]["every"]
        assert [row["step"] for row in measured] == list(range(every, steps + 1, every))


def test_more_text_takes_more_steps_at_every_scale():
    text = {job.name: job for job in lab_queue.JOBS if isinstance(job, lab_queue.LanguageJob)}
    for scale, whole in (("paper", 1500), ("smoke", 30)):
        steps = {name: {t["steps"] for t in job.trees(scale)} for name, job in text.items()}
        assert steps["text-rate"] == {whole}
        assert steps["text-400M"] == {whole * 3052 // 1500}
        assert steps["text-800M"] == {whole * 6104 // 1500}
    [state] = lab_queue.states([text["text-400M"]], scale="paper", root=Path("none"), out=None)
    assert state.tokens == pytest.approx(3 * 400e6, rel=1e-3)
    assert state.seconds == pytest.approx(
        400e6 * (1 / 1.613e6 + 1 / 1.339e6 + 1 / 0.804e6), rel=0.01
    )


def test_language_models_go_on_where_they_stopped(tmp_path: Path, capsys):
    pytest.importorskip("sentencepiece")
    tiny_corpus(tmp_path / "runs")
    text = ("--only", "quoted-text")
    assert queue(tmp_path, *text, "--max-seconds", "1e-6") == lab_queue.TRY_AGAIN
    assert "stopped at step" in capsys.readouterr().out
    assert queue(tmp_path, *text, "--list") == 0
    assert re.search(r"quoted-text +2 +0 +60 ", capsys.readouterr().out)

    assert queue(tmp_path, *text) == 0
    said = capsys.readouterr().out
    assert "language model 2 of 2: linear, seed 0 lr 0.001" in said
    assert said.count("validation loss") >= 2
    assert {run.summary is not None for run in read_runs(tmp_path / "runs")} == {True}

    # Again, and where no corpus is: nothing is left to be trained.
    shutil.rmtree(tmp_path / "runs" / "corpus")
    assert queue(tmp_path, *text, "--list") == 0
    assert re.search(r"quoted-text +2 +2 +0 ", capsys.readouterr().out)
    assert queue(tmp_path, *text) == 0
    assert "language model" not in capsys.readouterr().out


def test_steps_count_of_the_run_that_would_be_continued_alone(tmp_path: Path):
    pytest.importorskip("sentencepiece")
    root = tmp_path / "runs"
    corpus, job = tiny_corpus(root), job_of("quoted-text")
    config = language_config_from_tree(job.trees("smoke")[0], corpus)
    another = dataclasses.replace(config, log_every=7)  # the same model, watched otherwise

    def steps_left() -> int:
        return job.state(set(), scale="smoke", root=root, out=None).model_steps

    for trained, left in ((another, 60), (config, 60 - 10)):
        (language_run_path(trained, root) / "checkpoint-000010").mkdir(parents=True)
        assert steps_left() == left
    shutil.rmtree(corpus.path)
    assert steps_left() == 60


def test_without_a_corpus_text_is_left_out_and_the_others_go_on(tmp_path: Path, capsys):
    names = ("--only", "quoted-text", "--only", "tableA1-deep")
    assert queue(tmp_path, *names, "--max-seconds", "1e-6") == lab_queue.TRY_AGAIN
    capsys.readouterr()
    assert queue(tmp_path, *names) == lab_queue.FAILURE
    said = capsys.readouterr().out
    corpus = tmp_path / "runs" / "corpus"
    assert re.search(rf"quoted-text is left out: .*`hyla data prepare {corpus} FILES`", said)
    assert len(read_csv(tmp_path / "store" / "smoke-tf32" / "models-sraven.csv")) == 3


def test_a_language_model_that_fails_or_is_busy_does_not_keep_the_others(
    tmp_path: Path, monkeypatch, capsys
):
    pytest.importorskip("sentencepiece")
    tiny_corpus(tmp_path / "runs")
    job = lab_queue.LanguageJob(
        name="t", why="", attentions=("hyla", "softmax", "linear"), learning_rate=0.001
    )
    errors: dict[str, Any] = {
        "hyla": RuntimeError("out of luck"),
        "softmax": RunBusyError("somebody has it"),
    }

    def train(config, corpus, **options):
        if error := errors.get(config.model.attention):
            raise error
        return train_language(config, corpus, **options)

    monkeypatch.setattr(queue_jobs, "train_language", train)
    options: dict[str, Any] = {"root": tmp_path / "runs", "out": None, "workers": 1}
    options |= {"scale": "smoke", "max_seconds": float("inf"), "allow_dirty": False}
    assert lab_queue.run([job], device="cpu", **options) == lab_queue.FAILURE
    said = capsys.readouterr().out
    assert "somebody has it" in said
    assert "RuntimeError: out of luck" in said
    [finished] = [run for run in read_runs(tmp_path / "runs") if run.summary is not None]
    assert finished.config["model"]["attention"] == "linear"
    # Nor is it forgotten where the time ends before the others do.
    errors["linear"] = Interrupted("stopped at step 1", "time limit")
    shutil.rmtree(finished.path)
    assert lab_queue.run([job], device="cpu", **options) == lab_queue.FAILURE
    errors["linear"].reason = "SIGINT"
    assert lab_queue.run([job], device="cpu", **options) == lab_queue.CTRL_C
    del errors["hyla"], errors["linear"]
    assert lab_queue.run([job], device="cpu", **options) == lab_queue.TRY_AGAIN


def test_what_could_not_stop_in_time_is_not_begun(monkeypatch):
    assert queue_jobs.least_seconds("cpu") == 20
    monkeypatch.setattr(queue_jobs.torch.cuda, "is_available", lambda: True)
    assert queue_jobs.least_seconds("auto") == 90


# --- carried elsewhere ---------------------------------------------------------------------------


def test_runs_are_packed_in_parts_and_come_back(tmp_path: Path, capsys):
    assert queue(tmp_path, "--only", "tableA1-deep") == 0
    root = tmp_path / "runs"
    (root / ".compiled").mkdir(exist_ok=True)
    (root / ".compiled" / "code").write_bytes(bytes(100))
    (root / "logs").mkdir(exist_ok=True)
    parts = packing.pack(root, tmp_path / "packed", part_bytes=5000)
    assert [part.name for part in parts[:2]] == ["runs.tar.gz.00", "runs.tar.gz.01"]
    assert all(part.stat().st_size == 5000 for part in parts[:-1])
    assert parts[-1].stat().st_size <= 5000

    other = tmp_path / "other"
    assert lab_queue.main(["--unpack", str(tmp_path / "packed"), "--root", str(other)]) == 0
    [run], [again] = read_runs(root), read_runs(other)
    assert {path.name for path in other.iterdir()} == {run.path.name}
    for file in again.path.iterdir():
        assert file.read_bytes() == (run.path / file.name).read_bytes()
    capsys.readouterr()
    assert queue(tmp_path / "x", "--only", "tableA1-deep", "--list", "--root", str(other)) == 0
    assert re.search(r"tableA1-deep +3 +3 +0", capsys.readouterr().out)

    # What is as far stays, what is not is replaced.
    assert packing.unpack(tmp_path / "packed", other) == []
    (again.path / "finished.json").unlink()
    assert packing.unpack(tmp_path / "packed", other) == [run.path.name]
    # Packed anew, no part of before is left.
    assert len(packing.pack(root, tmp_path / "packed")) == 1


@pytest.fixture
def packed_runs(tmp_path: Path) -> list[Path]:
    """Pack an unfinished run with two checkpoints and a finished one, each of many parts."""
    for name, files in {
        "a-young-run": [
            *("checkpoint-000010.safetensors", "checkpoint-000020.safetensors"),
            *(".checkpoint-000030.safetensors.tmp-0", "checkpoint-000040.safetensors.set-aside-1"),
        ],
        "the-finished-run": ["checkpoint-000030.safetensors", "finished.json"],
    }.items():
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "config.json").write_text("{}")
        for file in files:
            noise = random.Random(file).randbytes(40_000)
            (run / file).write_bytes(b"{}" if file.endswith(".json") else noise)
    sharded = tmp_path / "runs" / "the-finished-run" / "checkpoint-000040"
    sharded.mkdir()
    (sharded / "rank").write_bytes(bytes(10))
    return packing.pack(tmp_path / "runs", tmp_path / "packed", part_bytes=4000)


def test_finished_runs_are_packed_first_and_the_newest_checkpoint_alone(packed_runs, tmp_path):
    assert packing.unpack(tmp_path / "packed", tmp_path / "new") == [
        "the-finished-run",
        "a-young-run",
    ]
    names = {path.name for path in (tmp_path / "new" / "a-young-run").iterdir()}
    assert names == {"config.json", "checkpoint-000020.safetensors"}


def test_what_is_being_trained_is_not_replaced(packed_runs, tmp_path: Path, capsys):
    young = tmp_path / "new" / "a-young-run"
    young.mkdir(parents=True)
    (young / "checkpoint-000010.safetensors").write_bytes(b"")
    with take_lock(young / "lock"):
        assert packing.unpack(tmp_path / "packed", young.parent) == ["the-finished-run"]
    assert f"{young} is being trained by process" in capsys.readouterr().out
    assert newest_step(young) == 10
    assert packing.unpack(tmp_path / "packed", young.parent) == ["a-young-run"]
    assert {path.name for path in young.parent.iterdir()} == {"a-young-run", "the-finished-run"}
    assert newest_step(young) == 20


@pytest.mark.parametrize(
    ("lost", "came"), [(0, []), (1, []), (-3, ["the-finished-run"]), (-1, ["the-finished-run"])]
)
def test_a_part_that_is_missing_costs_the_runs_from_there_on(
    packed_runs, tmp_path: Path, capsys, lost: int, came: list[str]
):
    packed_runs[lost].unlink()
    folders = ["--unpack", str(tmp_path / "packed"), "--root", str(tmp_path / "new")]
    assert lab_queue.main(folders) == lab_queue.USAGE
    said = capsys.readouterr().err
    assert ("has no runs.tar.gz.00" if lost == 0 else "does not hold all of what was") in said
    new = tmp_path / "new"
    assert [path.name for path in (new.iterdir() if new.exists() else ())] == came


def test_a_damaged_part_is_told(packed_runs, tmp_path: Path, capsys):
    middle = packed_runs[len(packed_runs) // 2]
    middle.write_bytes(bytes(len(middle.read_bytes())))
    folders = ["--unpack", str(tmp_path / "packed"), "--root", str(tmp_path / "new")]
    assert lab_queue.main(folders) == lab_queue.USAGE
    assert "or it is damaged" in capsys.readouterr().err
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("what", [["--list"], ["--pack", "packed"], []])
def test_a_damaged_run_is_told(tmp_path: Path, what: list[str], capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "language-damaged"
    run.mkdir(parents=True)
    (run / "config.json").write_text('{"task_name": "language"}')
    (run / "finished.json").write_text("{")
    assert queue(tmp_path, "--only", "quoted-text", *what) == lab_queue.FAILURE
    assert re.match("lab_queue: .*finished.json is damaged", capsys.readouterr().err)


def test_nothing_to_pack_or_to_unpack_is_told(tmp_path: Path, capsys):
    for option in ("--pack", "--unpack"):
        assert lab_queue.main([option, str(tmp_path), "--root", str(tmp_path)]) == lab_queue.USAGE
    said = capsys.readouterr().err
    assert "has no run directories to pack" in said
    assert "has no runs.tar.gz.00" in said

"""`hyla reproduce` and `hyla report`: from nothing to the report, in slices, and again."""

import builtins
import errno
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from hyla.cli import main
from hyla.commands.shared.exits import CTRL_C, FAILURE, TRY_AGAIN, USAGE
from hyla.figures.drawing import Bars, Figure, Lines, Points
from hyla.lab.methods import Effort, methods_of, results_of
from hyla.lab.plan.reproduction import Reproduction
from hyla.lab.registry import NAMES, load
from hyla.lab.report.sections import build
from hyla.lab.verdicts import NO_VERDICT, STATUSES, Verdict, judge
from hyla.results.conditions import Conditions
from hyla.results.csv_table import read_csv
from hyla.results.tables import Tables
from hyla.training.run.directory import RunDirectory
from hyla.training.run.held import run_name

_LITTLE = ("--scale", "smoke", "--seeds", "1", "--no-search", "--shorten", "10")
# Of Figure 2C two populations, of one model each; and half of it.
_CUT = (
    *_LITTLE,
    *("--only", "model.attention=hyla,linear", "task.held_out_fraction=0.3"),
    *("task.sequence_length=8",),
)
_HALF = (*_LITTLE, "--only", "task.sequence_length=8")


def _reproduce(folder: Path, *arguments: str) -> int:
    folders = ("--root", str(folder / "runs"), "--out", str(folder / "store"))
    return main(["reproduce", *arguments, *folders, "--device", "cpu"])


def _tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "store").glob("*/*.csv")}


def test_a_figure_in_slices(tmp_path: Path, capsys):
    assert _reproduce(tmp_path, "fig2c", *_CUT, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert shown.count(" new ") == 2
    assert "estimate" in shown
    assert not (tmp_path / "runs").exists()

    assert _reproduce(tmp_path, "fig2c", *_CUT, "--max-seconds", "1e-6") == TRY_AGAIN
    said = capsys.readouterr().err
    assert re.search(
        r"population 1 of 2: fuzzy hyla.*: stopped at step \d+ of 3 \(time limit\)", said
    )
    assert _reproduce(tmp_path, "fig2c", *_CUT, "--dry-run") == 0
    assert "resumable at step" in capsys.readouterr().out

    assert _reproduce(tmp_path, "fig2c", *_CUT, "--no-report") == 0
    rows = read_csv(tmp_path / "store" / "smoke-short10" / "models-fuzzy.csv")
    assert [row["model.attention"] for row in rows] == ["hyla", "linear"]
    assert {row["step"] for row in rows} == {3}
    assert not (tmp_path / "store" / "report.html").exists()

    capsys.readouterr()
    assert _reproduce(tmp_path, "fig2c", *_CUT, "--dry-run") == 0
    assert capsys.readouterr().out.count(" finished ") >= 2


def test_the_store_alone_makes_the_report(tmp_path: Path, capsys):
    assert _reproduce(tmp_path, "fig2c", *_HALF, "--no-report") == 0
    assert _reproduce(tmp_path, "fig3", "tableA3", *_LITTLE) == 0
    page = (tmp_path / "store" / "report.html").read_text()
    markdown = (tmp_path / "store" / "report.md").read_text()
    shutil.rmtree(tmp_path / "runs")
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.suffix != ".csv":
            path.unlink()

    capsys.readouterr()
    assert main(["report", str(tmp_path / "store")]) == 0
    assert (tmp_path / "store" / "report.md").read_text() == markdown
    again = (tmp_path / "store" / "report.html").read_text()
    # Plotly gives its elements random names.
    names = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
    assert names.sub("", again) == names.sub("", page)
    assert "<script src" not in page  # one file, no network
    figures = tmp_path / "store" / "smoke-short10" / "figures"
    assert {path.name for path in figures.iterdir()} == {
        f"{name}.{suffix}" for name in ("fig2c", "figA3", "fig3") for suffix in ("png", "pdf")
    }


def test_what_was_not_measured_does_not_appear(tmp_path: Path):
    assert _reproduce(tmp_path, "fig2c", *_CUT, "--no-report") == 0
    # Two of twelve methods are shown, but not in every figure that has them; no claim is judged.
    [section] = build(tmp_path / "store")
    assert not section.verdicts

    assert _reproduce(tmp_path, "fig2c", *_HALF, "--no-report") == 0
    sections = {section.experiment.name: section for section in build(tmp_path / "store")}
    models = sections["fig2c"].models
    assert models is not None
    assert {row[0] for row in models.rows} == {
        f"fuzzy {method}{fraction}"
        for method in ("hyla", "linear", "softmax")
        for fraction in ("", ", task.held_out_fraction 0.5")
    }
    # The paper's first claim is listed wherever its three methods were measured.
    assert sections.keys() == {"fig2c", "figA3", "tableA1"}
    # With all fractions at one of two lengths, only what is said of one length can be judged.
    assert {v.status for v in sections["fig2c"].verdicts} == {NO_VERDICT}
    assert [v.claim for v in sections["fig2c"].verdicts] == [
        "All models are able to solve the task given sufficient examples in context.",
        "HYLA does best at 50% held out and 8 examples.",
    ]


def test_deleted_results_come_back_the_same(tmp_path: Path):
    assert _reproduce(tmp_path, "fig2c", *_CUT, "--no-report") == 0
    before = _tables(tmp_path)
    shutil.rmtree(tmp_path / "store")
    assert _reproduce(tmp_path, "fig2c", *_CUT, "--no-report") == 0
    assert _tables(tmp_path) == before


def test_everything_deleted_and_run_again_gives_the_same_verdicts(tmp_path: Path):
    """Without the runs as well: a model is a function of its config and seed."""

    def judged(name: str) -> list[Verdict]:
        assert _reproduce(tmp_path / name, "fig2c", *_HALF, "--no-report") == 0
        tables = Tables(tmp_path / name / "store", Conditions(scale="smoke", shorten=10))
        return judge(load("fig2c").claims(results_of(load("fig2c"), tables)))

    first = judged("once")
    assert first
    assert judged("again") == first


def test_a_smoke_report_claims_nothing(tmp_path: Path):
    assert _reproduce(tmp_path, "tableA3", "--scale", "smoke") == 0
    markdown = (tmp_path / "store" / "report.md").read_text()
    assert "| smoke scale: not a verdict |" in markdown
    assert not any(f"| **{status}** |" in markdown for status in STATUSES)
    page = (tmp_path / "store" / "report.html").read_text()
    assert "smoke scale: not a verdict" in page
    assert not any(f">{status}</span>" in page for status in STATUSES)


def test_without_plotly_and_matplotlib(tmp_path: Path, capsys, monkeypatch):
    assert _reproduce(tmp_path, "fig3", "--scale", "smoke", "--no-report") == 0
    missing = {"plotly"}
    real_import = builtins.__import__

    def without(name: str, *arguments, **options):
        if name.partition(".")[0] in missing:
            raise ImportError(f"No module named {name!r}")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    store = tmp_path / "store"
    assert main(["report", "--out", str(store)]) == 0
    assert "plotly is not installed" in capsys.readouterr().out
    assert "data:image/png;base64" in (store / "report.html").read_text()

    missing.add("matplotlib")
    shutil.rmtree(store / "smoke" / "figures")
    assert main(["report", "--out", str(store)]) == 0
    assert "matplotlib is not installed" in capsys.readouterr().out
    assert "Figure 3" in (store / "report.html").read_text()


def test_a_measurement_that_fails_is_named(tmp_path: Path, capsys, monkeypatch):
    def fail(measuring):
        raise ValueError("no solver today")

    measurement = load("tableA2").measurement
    monkeypatch.setitem(vars(measurement), "measure", fail)
    names = ("tableA2", "tableA3")
    assert _reproduce(tmp_path, *names, "--scale", "smoke", "--no-report") == FAILURE
    assert "tableA2: ValueError: no solver today" in capsys.readouterr().err
    assert set(_tables(tmp_path)) == {"tableA3.csv"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig9",), "not a figure or table"),
        (("fig2c", "--scale", "papr"), "did you mean 'paper'"),
        (("fig2c", "--only", "model.atention=hyla"), "did you mean 'model.attention'"),
        (("fig2c", "--only", "task_name"), "say which values"),
        (("fig2c", "--scale", "paper", "--only", "learning_rate=3e-4"), "is one of 0.001, 0.003"),
        (("fig2c", "--only", "learning_rate=fast"), "learning_rate=fast: no model has that"),
        (
            ("fig2c", "--only", "seed=0,7"),
            "seed=7: no model has that. Of the models, seed is one of 0, 1",
        ),
        (("fig2c", "--only", "seed=0", "seed=8"), "seed=8: no model has that"),
        (("fig2c", "--only", "model.attention=hyla,hylaa"), "did you mean 'hyla'"),
        (("tableA1", "--only", "task_name=fuzzy", "task.num_values=8"), "leaves no model"),
        (("fig2c", "--seeds", "0"), "--seeds must be at least 1"),
        (("fig2c", "--shorten", "0"), "--shorten must be at least 1"),
        (("fig2c", "--workers", "0"), "--workers must be at least 1"),
        (("fig2c", "--max-population", "0"), "--max-population must be at least 1"),
        (("fig2c", "--max-seconds", "nan"), "--max-seconds must be more than 0, got nan"),
        (("fig2c", "--max-seconds", "0"), "--max-seconds must be more than 0, got 0"),
        (("fig3", "--only", "seed=0"), "fig3 trains none"),
        (("fig2c", "--no-wait"), "--no-wait is for --launcher slurm"),
        (("fig2c", "--slurm.partition", "gpu"), "--slurm.* is for --launcher slurm"),
        (("fig2c", "--launcher", "slurm", "--workers", "2"), "--workers is for --launcher local"),
        (("fig2c", "--launcher", "slurm", "--max-seconds", "3"), "--slurm.time"),
    ],
)
def test_mistakes_are_answered(tmp_path: Path, capsys, arguments: tuple[str, ...], message: str):
    assert _reproduce(tmp_path, *arguments) == USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["root", "out"])
def test_a_folder_that_cannot_be_written_is_named_before_training(
    tmp_path: Path, capsys, monkeypatch, folder: str
):
    # The bits of a directory do not bind root, under whom tests may run.
    locked = tmp_path / "locked"
    locked.mkdir()
    real = tempfile.TemporaryFile

    def refuse(*, dir: Path):
        if dir == locked:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.chdir(tmp_path)
    below = locked / "deep" / "below"
    command = ["reproduce", "fig2c", *_CUT, f"--{folder}", str(below)]
    assert main(command) == USAGE
    said = capsys.readouterr().err
    assert f"--{folder} {below}: cannot write in {locked} (Permission denied)" in said
    assert list(tmp_path.iterdir()) == [locked]
    assert main([*command, "--dry-run"]) == 0  # which writes nothing


def test_a_report_that_cannot_be_written_is_refused(capsys):
    assert main(["report", "/proc/store"]) == USAGE
    assert "--out /proc/store: cannot write in /proc" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_smoke_run_leaves_a_checkout_clean(tmp_path: Path, capsys, monkeypatch):
    shutil.copy(Path(__file__).parents[3] / ".gitignore", tmp_path)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "tableA3", "--scale", "smoke"]) == 0
    assert "listed at smoke scale: 1. None is judged" in capsys.readouterr().out
    assert main(["report", "results/smoke"]) == 0
    assert "listed at smoke scale: 1. None is judged" in capsys.readouterr().out
    for written in ("results/smoke/report.md", "latents/codes.npz"):  # the latter by `hyla latents`
        Path(written).parent.mkdir(exist_ok=True)
        Path(written).touch()
    shown = subprocess.run([*git, "status", "--short"], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == ["??", ".gitignore"]
    # At other scales results are to be kept.
    assert main(["reproduce", "tableA3", "--allow-dirty"]) == 0  # that of the source tree
    assert Path("results/lab/report.md").exists()


def test_estimates_say_what_they_leave_out(tmp_path: Path, capsys):
    paper = ("--scale", "paper", "--dry-run")
    assert _reproduce(tmp_path, "fig6", "fig3", *paper) == 0
    shown = capsys.readouterr().out
    assert "of training steps alone" in shown
    assert re.search(r"fig6 +- +- +- +Figure 6", shown)  # on a CPU nothing is known
    assert main(["reproduce", "fig6", "fig3", *paper, "--device", "cuda"]) == 0
    on_a_gpu = capsys.readouterr().out
    assert re.search(r"fig6 +- +- +3\.1 days +Figure 6", on_a_gpu)
    assert re.search(r"fig3 +- +- +- +Figure 3", on_a_gpu)
    assert f"fig6: needs a corpus in {tmp_path / 'runs' / 'corpus'}" in shown


def test_models_that_were_trained_by_hand_are_pointed_out(tmp_path: Path, capsys, monkeypatch):
    """`hyla train` leaves them in the folder above."""
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "fig2c", *_CUT, "--dry-run", "--device", "cpu"]
    assert main(command) == 0
    assert "hyla train" not in capsys.readouterr().out
    trained = (*_CUT, "--no-report", "--device", "cpu")
    assert main(["reproduce", "fig2c", *trained, "--root", "runs", "--out", "elsewhere"]) == 0
    capsys.readouterr()
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 of the models to train here are finished under runs, where hyla train" in said
    assert main([*command, "--root", "runs"]) == 0
    assert "hyla train leaves" not in capsys.readouterr().out
    config = next(Path("runs").rglob("config.json"))
    config.write_text(config.read_text()[:40])
    assert main(command) == 0  # a damaged run there hinders nothing here
    assert "hyla train leaves" not in capsys.readouterr().out


def test_models_trained_by_hand_that_lack_a_split_are_pointed_out(
    tmp_path: Path, capsys, monkeypatch
):
    """`hyla train` scores on fewer splits than the lab asks for, which trains nothing again."""
    monkeypatch.chdir(tmp_path)
    device = ("--device", "cpu")
    assert main(["train", "fuzzy", "--scale", "smoke", "--attention", "softmax", *device]) == 0
    capsys.readouterr()
    only = ("--only", "task_name=fuzzy", "model.attention=softmax", "model.feed_forward=gelu")
    command = ["reproduce", "tableA1", "--scale", "smoke", "--seeds", "1", "--no-search", *only]
    assert main([*command, "--dry-run", *device]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of the models to train here are finished under runs" in said
    run = next(Path("runs").glob("fuzzy-*"))
    shutil.copytree(run, Path("runs/lab") / run.name)
    assert main([*command, "--dry-run", *device]) == 0  # here too it is only to be scored
    assert "hyla train leaves" not in capsys.readouterr().out


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_another_process_trains_is_left_to_it(tmp_path: Path, capsys, workers: str):
    methods = methods_of(
        load("fig2c"),
        Conditions(scale="smoke", shorten=10),
        Effort(
            seeds=1,
            search=False,
            only={
                "model.attention": ["hyla", "linear"],
                "task.held_out_fraction": ["0.3"],
                "task.sequence_length": ["8"],
            },
        ),
    )
    theirs = methods[1].config
    command = ("fig2c", *_CUT, "--no-report", "--workers", workers)
    with RunDirectory.open(tmp_path / "runs", run_name(theirs), theirs.to_tree()):
        assert _reproduce(tmp_path, *command) == TRY_AGAIN
    out, said = capsys.readouterr()
    assert "another process is training it" in out
    assert "1 of 2 populations are being trained by other processes" in said
    assert _reproduce(tmp_path, *command) == 0


def test_ctrl_c_while_measuring_says_that_the_same_command_continues(
    tmp_path: Path, capsys, monkeypatch
):
    def interrupt(measuring):
        raise KeyboardInterrupt

    monkeypatch.setitem(vars(load("tableA3").measurement), "measure", interrupt)
    assert _reproduce(tmp_path, "tableA3", "--scale", "smoke") == CTRL_C
    [line] = capsys.readouterr().err.splitlines()
    assert "the same command continues" in line


def test_without_names_all_are_listed(tmp_path: Path, capsys):
    assert _reproduce(tmp_path) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)


@pytest.mark.parametrize("option", [["--out"], []])
def test_a_report_of_nothing_says_how_to_get_something(tmp_path: Path, capsys, option: list[str]):
    assert main(["report", *option, str(tmp_path)]) == USAGE
    message = capsys.readouterr().err
    assert f"{tmp_path} holds no results" in message
    assert "hyla reproduce all --scale smoke" in message


def _check_legend(figure: Figure | None) -> None:
    """Panels share a legend: each name is to have a colour of its own, the same in all of them."""
    panels = [panel for row in figure.panels for panel in row] if figure else []
    series = [one for panel in panels if isinstance(panel, Lines | Bars) for one in panel.series]
    looks = {(one.name, one.colour, one.dashed) for one in series}
    for panel in panels:
        if isinstance(panel, Points):
            looks |= {(name, colour, False) for name, colour in panel.class_colours.items()}
    assert len({name for name, *_ in looks}) == len(looks)
    assert len({look[1:] for look in looks}) == len(looks)


def test_everything_end_to_end(tmp_path: Path, capsys):
    """As `hyla reproduce all --scale smoke`, with a seventh of its steps and one model a method."""
    cut = ("--scale", "smoke", "--seeds", "1", "--no-search", "--shorten", "7")
    assert _reproduce(tmp_path, "all", *cut) == 0
    sections = {section.experiment.name: section for section in build(tmp_path / "store")}
    assert sections.keys() == set(NAMES)
    for section in sections.values():
        _check_legend(section.figure)
    page = (tmp_path / "store" / "report.html").read_text()
    assert "These numbers only show that everything runs" in page


# --- where results come from ---------------------------------------------------------------------


@pytest.fixture
def dirty_tree(monkeypatch):
    monkeypatch.setattr("hyla.lab.plan.reproduction.git_commit", lambda: "ab12-dirty")


def test_a_dirty_tree_is_not_collected_from_unasked(tmp_path: Path, capsys, dirty_tree):
    assert _reproduce(tmp_path, "tableA3", "--scale", "laptop", "--no-report") == USAGE
    assert "uncommitted changes" in (told := capsys.readouterr().err)
    for advice in ("commit or stash them", "HYLA_COMMIT", "or collect with --allow-dirty"):
        assert advice in " ".join(told.split())
    assert not (tmp_path / "store").exists()
    allowed = ("--scale", "laptop", "--no-report", "--allow-dirty")
    assert _reproduce(tmp_path, "tableA3", *allowed) == 0
    assert (tmp_path / "store" / "laptop" / "tableA3.csv").exists()


def test_nor_are_runs_of_a_dirty_tree(tmp_path: Path, monkeypatch):
    """Here runs of smoke scale, taken for others: such would take minutes."""
    monkeypatch.setattr("hyla.lab.plan.reproduction.git_commit", lambda: "ab12")
    monkeypatch.setattr("hyla.training.run.directory.git_commit", lambda: "cd34-dirty")
    assert _reproduce(tmp_path, "fig2c", *_CUT, "--no-report") == 0
    job = Reproduction(names=["fig2c"], scale="smoke", shorten=10, seeds=1, root=tmp_path / "runs")
    shares = [share for share in job.plan() if share.path.exists()]
    job.check_origins(shares)  # the numbers mean nothing
    object.__setattr__(job, "scale", "laptop")
    with pytest.raises(
        ValueError, match=r"2 runs under .* uncommitted changes \(fuzzy-.*move them"
    ):
        job.check_origins(shares)
    object.__setattr__(job, "allow_dirty", True)
    job.check_origins(shares)


def test_smoke_scale_may_come_from_anywhere(tmp_path: Path, dirty_tree):
    assert _reproduce(tmp_path, "tableA3", "--scale", "smoke", "--no-report") == 0

"""`hyla` as a person at a shell meets it."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hyla import __version__
from hyla.cli import main
from hyla.commands.shared.exits import CTRL_C, FAILURE, TRY_AGAIN, USAGE
from hyla.results.runs import StoredRun, read_runs
from hyla.tasks.sraven.variants import variant_named
from hyla.training import config_from_tree, load_preset
from hyla.training.run.directory import RunDirectory
from hyla.training.run.held import run_name


def _train(root: Path, *arguments: str) -> int:
    return main(["train", "fuzzy", "--scale", "smoke", "--root", str(root), *arguments])


_AS_TEXT = {"capture_output": True, "text": True, "timeout": 300}


def _only_run(root: Path) -> StoredRun:
    [run] = read_runs(root)
    return run


def test_general_help_does_not_wait_for_torch():
    code = """
import sys
from hyla.cli import main
code = main(["--help"])
assert "torch" not in sys.modules
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
    assert "sweep" in done.stdout


def test_ctrl_c_while_importing_leaves_no_traceback():
    # A module that the command imports stands for all of them: Ctrl-C comes in the middle.
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "hyla.commands.train":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from hyla.cli import main
sys.exit(main(["train", "fuzzy"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (CTRL_C, "", "hyla: stopped\n")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_language_is_described_and_keeps_its_own_help(capsys):
    assert main(["train", "--help"]) == 0
    assert "Train a language model on a corpus" in capsys.readouterr().out
    assert main(["train", "language", "--help"]) == 0
    shown = capsys.readouterr().out
    for part in ("torchrun", "Exit codes", "Folder of the corpus."):
        assert part in shown


def test_help_of_tasks_tells_defaults(capsys):
    assert main(["train", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(default: smoke 8, laptop 16, paper 32)" in said
    assert "fuzzy: Share of the combinations of known" in said
    assert (
        "(default: smoke 0.3, laptop 0.5, paper 0.7) sraven: Share of the rule combinations that "
        "training never shows. (default: 0.25)"
    ) in said


def test_help_of_train_teaches(capsys):
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for part in (
        *("Examples", "--model.num-layers", "Steps between evaluations.", "default: laptop"),
        "Splits of the task to score.",
    ):
        assert part in shown
    assert "sraven: M: features that follow a rule." in shown
    assert 'default: ""' not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], 'Did you mean "train"?'),
        (["train", "sravn"], "did you mean 'sraven'?"),
        (
            ["train", "langage"],
            "did you mean 'language'?); choose from fuzzy, sraven, recall, language",
        ),
        (["train", "fuzzy", "--scale", "lapto"], "did you mean 'laptop'?"),
        (["train", "fuzzy", "--sedes", "3"], "did you mean '--seeds'?"),
        (["train"], "say what to train on: fuzzy, sraven, recall, language"),
        (["train", "fuzzy", "--steps", "1.5"], "1.5"),
        (["train", "fuzzy", "--seeds", "1.7"], "1.7"),
        (["train", "fuzzy", "--warmup-steps", "10", "2.5"], "2.5"),
        (["train", "fuzzy", "--model.num-layers", "1.5"], "1.5"),
        (["reproduce", "fig2c", "--seeds", "0.9"], "0.9"),
        (["train", "fuzzy", "--model.num-layer", "3"], "did you mean '--model.num-layers'?"),
        (["train", "fuzzy", "--model.phi", "silu"], "as in --attention hyla.silu"),
        (["train", "fuzzy", "--model.backend", "fused"], "--model.backend; see hyla train --help"),
        (["train", "fuzzy", "--model.held-out-fraction", "1"], "'--task.held-out-fraction'"),
        (["train", "fuzzy", "--attention", "hylla"], "did you mean 'hyla'?"),
        (["train", "fuzzy", "--attention", "HYLA"], "did you mean 'hyla'?"),
        (["train", "fuzzy", "--attention", "best"], "(recommended: 'hyla.expected2')"),
        (["doctor", "int"], "'int' has no meaning here (did you mean 'init'?)"),
        (["explore", "--prot", "3"], "did you mean '--port'?"),  # --root is as close
        (["bench", "--what", "train"], "no option --what; see hyla bench --help"),
        (["demo", "--sede", "3"], "no option --sede; see hyla demo --help"),
        (
            ["train", "fuzzy", "--precision", "bf61"],
            "did you mean 'bf16'?); choose from float32, tf32, bf16",
        ),
        (["train", "fuzzy", "--max-seconds", "0"], "--max-seconds must be more than 0, got 0"),
        (["train", "fuzzy", "--max-seconds", "-5"], "--max-seconds must be more than 0, got -5"),
        (["train", "fuzzy", "--root", "/proc/runs"], "--root /proc/runs: cannot write in /proc"),
        (["train", "fuzzy", "--evaluation.splits", "odd"], "did you mean 'ood'?"),
        (["train", "fuzzy", "--lr", "fast"], "--lr"),
        (["train", "fuzzy", "--model.num-heads", "3"], "num_heads=3"),
        (["train", "fuzzy", "--task.num-features", "3"], "a setting of the task sraven, not of"),
        (["train", "fuzzy", "--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["train", "fuzzy", "--seeds", "0"], "members"),
        (["train", "fuzzy", "--task.held-out-fraction", "0"], "leaves the held-out side empty"),
        (["train", "fuzzy", "--task.sequence-length", "1"], "sequence_length must be at least 2"),
        (["train", "fuzzy", "--model.backend", "fused"], "--model.backend"),
        (["train", "fuzzy", "--model.inputs", "tokens"], "--model.inputs"),
        (["train", "fuzzy", "--model.tied"], "--model.tied"),
        (["train", "fuzzy", "--model.feed-forward", "moe", "--model.top-k", "9"], "top_k=9"),
        (["train", "fuzzy", "--model.num-experts", "8"], "add --model.feed-forward moe"),
        (["train", "fuzzy", "--task.num-variables", "40"], "a split lists them all"),
        (["train", "fuzzy", "--task.held-out-fraction", "inf"], "must be finite, got inf"),
        (["train", "fuzzy", "--model.positions", "rotary", "--model.qk-dim", "8"], "even head"),
        (["train", "fuzzy", "--lr", "inf"], "learning_rate must be finite"),
        (["train", "fuzzy", "--lr", "1e-3", "1e-3"], "members holds a model 2 times: seed 0"),
        (["train", "fuzzy", "--root", __file__], "test_cli.py is not a directory"),
        (
            ["train", "sraven", "--learning-rate"],
            "--learning-rate needs a number: Peak learning rates; see hyla train --help",
        ),
        (["train", "fuzzy", "--lr", "1e-3", "--lr"], "--lr needs a number"),
        (["train", "fuzzy", "--warmup-steps", "--seeds", "3"], "--warmup-steps needs a whole"),
        (["train", "fuzzy", "--seeds"], "--seeds needs a whole number: Number of seeds: 0 to"),
        (["train", "fuzzy", "--evaluation.splits"], "needs a value: Splits of the task to score"),
        (["train", "fuzzy", "--device"], "--device needs a value: one of auto, cpu, cuda"),
        (["train", "fuzzy", "--model"], "--model has parts, such as --model."),
        (["train", "sraven", "--task.num-features"], "features that follow a rule; see hyla train"),
        (["train", "fuzzy", "--plugin", "--steps", "3"], "--plugin needs a file"),
        (["train", "language"], "hyla train language needs DATA: Folder of the corpus"),
        (
            ["doctor", "init"],
            "hyla doctor init needs TASK: fuzzy, sraven, recall, language, or a plug-in's; see",
        ),
        (["bench"], "hyla bench needs WHAT: one of train, samplers, "),
        (["models", "--ouf", "models"], "there is no option --ouf (did you mean '--out'?)"),
        (["demo", "--device", "gpu"], "--device"),
        (["demo", "--out", f"{__file__}/below"], "test_cli.py is not a directory"),
        (["demo", "--out", "/proc/below"], "--out /proc/below: cannot write in /proc"),
        (["sweep", "nowhere.yaml"], "cannot read nowhere.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_answered_in_one_line(arguments: list[str], message: str, capsys):
    assert main(arguments) == USAGE
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(complaint.splitlines()) == 1


def test_options_go_over_the_file_and_the_file_over_the_preset(tmp_path: Path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text("steps: 3\nbatch_size: 5\nmembers: {weight_decay: [0.03]}\n")
    arguments = (
        *("--config", str(file), "--steps", "2", "--log-every", "1", "--attention", "softmax"),
        *("--seeds", "2", "--lr", "1e-3", "3e-3"),
        *("--model.num-layers", "2", "--model.causal", "--task.sequence-length", "6"),
        *("--evaluation.splits", "test", "ood", "--evaluation.final-instances", "8"),
    )
    assert _train(tmp_path / "runs", *arguments) == 0
    run = _only_run(tmp_path / "runs")
    preset = load_preset("fuzzy", "smoke")
    assert run.config["steps"] == 2
    assert run.config["log_every"] == 1
    assert run.config["batch_size"] == 5
    assert run.config["model"]["attention"] == "softmax"
    assert run.config["model"]["num_layers"] == 2
    assert run.config["model"]["causal"] is True
    assert run.config["model"]["embed_dim"] == preset["model"]["embed_dim"]
    assert run.config["task"]["sequence_length"] == 6
    assert run.config["evaluation"]["splits"] == ["test", "ood"]
    assert [(m["seed"], m["learning_rate"], m["weight_decay"]) for m in run.members] == [
        (seed, rate, 0.03) for seed in (0, 1) for rate in (1e-3, 3e-3)
    ]
    shown = capsys.readouterr().out
    assert str(run.path) in shown
    assert "best by test" in shown  # there was no validation split


def test_a_variant_sets_the_task_and_nothing_else(tmp_path: Path, capsys):
    arguments = ["train", "sraven", "--scale", "smoke", "--steps", "2", "--root", str(tmp_path)]
    assert main([*arguments, "--variant", "longer", "--seeds", "2"]) == 0
    config = config_from_tree(_only_run(tmp_path).config)
    assert config.task == variant_named("longer").config
    assert config.model == dataclasses.replace(
        config_from_tree(load_preset("sraven", "smoke")).model,
        sequence_length=36,
        input_dim=8,
        output_dim=8,
    )
    assert main([*arguments, "--variant", "longr"]) == USAGE
    assert "did you mean 'longer'?" in capsys.readouterr().err
    assert main([*arguments, "--variant", "longer", "--task.num-features", "3"]) == USAGE
    assert "leave out --task.num-features" in capsys.readouterr().err
    assert _train(tmp_path, "--variant", "longer") == USAGE
    assert "FuzzyLogic has no named variants" in capsys.readouterr().err


def test_members_listed_in_a_file_are_those_that_train(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("steps: 1\nmembers: [{seed: 7}, {seed: 8, learning_rate: 0.01}]\n")
    assert _train(tmp_path / "runs", "--config", str(file)) == 0
    members = _only_run(tmp_path / "runs").members
    assert [(m["seed"], m["learning_rate"]) for m in members] == [(7, 0.001), (8, 0.01)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("members:", "members must be a list of models or a grid of lists, got None"),
        ("members: {seed: [100000000000000000000]}", "seed must lie between"),
        ("model: {backend: fussed}", "did you mean 'fused'?"),
        ("model: {backend: fused, attention: hyla_deep}", "cannot compute this on cpu"),
        ("model: {inputs: tokens}", "the tasks give no tokens"),
        ("null: 3", "None is not a setting"),
        ("task_name: [fuzzy]", "is for the task ['fuzzy'], not for 'fuzzy'"),
        ("task_name: sraven", "is for the task 'sraven', not for 'fuzzy'"),
        ("- steps", "as in `steps: 1000`"),
        ("steps: [", "is not YAML"),
    ],
)
def test_mistakes_in_a_file_are_answered_before_there_is_a_run(
    tmp_path: Path, content: str, message: str, capsys
):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    assert _train(tmp_path / "runs", "--config", str(file), "--device", "cpu") == USAGE
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(complaint.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("members", ["[{seed: 7}]", ""])
def test_members_listed_in_a_file_cannot_be_a_grid_too(tmp_path: Path, members: str, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(f"members: {members}\n")
    assert _train(tmp_path, "--config", str(file), "--seeds", "2") == USAGE
    assert "leave out --seeds" in capsys.readouterr().err


def test_final_table_marks_the_diverged_and_the_best(tmp_path: Path, capsys):
    assert _train(tmp_path, "--steps", "5", "--lr", "1e38", "1e-3") == 0
    lines = capsys.readouterr().out.splitlines()
    [diverged] = [line for line in lines if re.search(r"diverged at step \d+$", line.rstrip())]
    [best] = [line for line in lines if "best by validation" in line]
    assert diverged != best


def test_no_member_is_the_best_where_all_diverged(tmp_path: Path, capsys):
    assert _train(tmp_path, "--steps", "5", "--lr", "1e38", "2e38") == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r"diverged at step \d+ *$", shown, re.MULTILINE)) == 2
    assert "best by" not in shown


def test_time_limit_leaves_a_run_that_the_same_command_finishes(tmp_path: Path, capsys):
    assert _train(tmp_path, "--max-seconds", "1e-6", "--tensorboard") == TRY_AGAIN
    assert "the same command continues" in capsys.readouterr().err
    assert _only_run(tmp_path).summary is None
    assert _train(tmp_path, "--tensorboard") == 0
    run = _only_run(tmp_path)
    assert run.summary is not None
    assert list(run.path.glob("tensorboard/**/events*"))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, TRY_AGAIN), (signal.SIGINT, CTRL_C)], ids=str
)
def test_signals_save_and_exit_with_their_code(tmp_path: Path, number: int, code: int, capsys):
    def send_once_it_trains() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            # Not before: outside of training, the signal would end the test process.
            if any(path.stat().st_size for path in tmp_path.glob("*/metrics.jsonl")):
                os.kill(os.getpid(), number)
                return
            time.sleep(0.01)

    sender = threading.Thread(target=send_once_it_trains)
    sender.start()
    assert _train(tmp_path, "--steps", "1000000") == code
    sender.join()
    step = _only_run(tmp_path).checkpoint_step
    assert step is not None
    assert f"stopped at step {step} " in capsys.readouterr().err


def test_a_second_ctrl_c_says_that_the_same_command_continues(tmp_path: Path, capsys, monkeypatch):
    def interrupted(*arguments: object, **options: object):
        raise KeyboardInterrupt

    monkeypatch.setattr("hyla.commands.train.train_population", interrupted)
    assert _train(tmp_path) == CTRL_C
    [line] = capsys.readouterr().err.splitlines()
    assert "the same command continues" in line


def test_busy_run_is_left_alone(tmp_path: Path, capsys):
    config = config_from_tree(load_preset("fuzzy", "smoke"))
    with RunDirectory.open(tmp_path, run_name(config), json.loads(json.dumps(config.to_tree()))):
        assert _train(tmp_path) == FAILURE
    assert "is being trained by process" in capsys.readouterr().err


def test_a_whole_number_may_have_a_point(tmp_path: Path):
    assert _train(tmp_path, "--steps", "2.0") == 0
    assert _only_run(tmp_path).config["steps"] == 2


def test_a_reader_that_leaves_early_sees_no_traceback():
    command = f"{sys.executable} -m hyla doctor --json | true"
    done = subprocess.run(["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], **_AS_TEXT)
    assert (done.returncode, done.stderr) == (1, "")


def test_wandb_on_a_finished_run_says_that_it_records_nothing(tmp_path: Path, capsys):
    assert _train(tmp_path) == 0
    capsys.readouterr()
    assert _train(tmp_path, "--tensorboard") == 0
    assert "is finished: --tensorboard records steps while" in capsys.readouterr().err

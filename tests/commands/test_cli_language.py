"""`hyla data`, `hyla train language`, `hyla generate`: from a text file to a text."""

import gzip
import json
import subprocess
import sys

import pytest

from hyla.cli import main
from hyla.commands.shared.exits import exit_code
from hyla.training.language.__main__ import main as train_bare
from hyla.training.run.ranks import RankFailedError
from tiny_text import VOCAB_SIZE, documents, write_json_lines, write_text

pytest.importorskip("sentencepiece")

TRAIN = ["train", "language"]
SMALL = ["--scale", "smoke", "--steps", "6", "--model.embed-dim", "16", "--sequence-length", "16"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    source = write_text(folder / "a.txt", documents())
    options = ["--vocab-size", str(VOCAB_SIZE), "--validation-fraction", "0.1", "--workers", "1"]
    assert main(["data", "prepare", str(folder / "corpus"), str(source), *options]) == 0
    return folder / "corpus"


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    arguments = ["--root", str(root), "--device", "cpu", "--attention", "softmax"]
    assert main([*TRAIN, str(corpus), *SMALL, *arguments]) == 0
    (path,) = root.iterdir()
    return path


def test_a_corpus_is_shown_and_verified(corpus, capsys):
    assert main(["data", "show", str(corpus), "--verify"]) == 0
    said = capsys.readouterr().out
    assert "vocabulary of 400" in said
    assert "validation" in said
    assert "every file has the hash that the manifest says" in said


def test_settings_reach_the_run(run):
    config = json.loads((run / "config.json").read_text())
    assert config["model"]["attention"] == "softmax"
    assert config["model"]["embed_dim"] == config["model"]["qk_dim"] == 16
    assert config["steps"] == 6
    assert json.loads((run / "finished.json").read_text())["tokens"] == 6 * 8 * 16


def test_the_summary_says_what_matters(corpus, run, capsys):
    again = ["--root", str(run.parent), "--device", "cpu", "--attention", "softmax"]
    assert main([*TRAIN, str(corpus), *SMALL, *again]) == 0  # finished: read, not trained
    said = capsys.readouterr().out
    for heading in ("perplexity", "bits per byte", "tokens/s", "without embeddings"):
        assert heading in said


def test_a_stopped_run_says_how_to_go_on(corpus, tmp_path, capsys):
    arguments = [*TRAIN, str(corpus), *SMALL, "--root", str(tmp_path), "--device", "cpu"]
    assert main([*arguments, "--max-seconds", "1e-6"]) == 75
    assert "the same command continues from there" in capsys.readouterr().err
    assert main([*arguments, "--tensorboard"]) == 0
    (path,) = tmp_path.iterdir()
    assert list((path / "tensorboard").rglob("events.*"))


def test_a_config_file_goes_over_the_preset(corpus, tmp_path):
    settings = tmp_path / "a.yaml"
    settings.write_text("steps: 3\nmember: {learning_rate: 0.01}\nmodel: {attention: linear}\n")
    arguments = ["--config", str(settings), "--root", str(tmp_path / "runs"), "--device", "cpu"]
    assert main([*TRAIN, str(corpus), *SMALL, *arguments, "--lr", "0.02"]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    config = json.loads((path / "config.json").read_text())
    assert config["steps"] == 6  # the command line's
    assert config["model"]["attention"] == "linear"
    assert config["member"]["learning_rate"] == 0.02


def test_generate(run, capsys):
    greedy = ["generate", str(run), "--prompt", "Anna saw", "--temperature", "0"]
    greedy += ["--max-new-tokens", "8"]
    texts = []
    for more in ([], ["--no-cache"]):
        assert main([*greedy, "--device", "cpu", *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("Anna saw")
    assert main(["generate", str(run), "--samples", "2", "--tokens", "5", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "--- 1" in said
    assert "--- 2" in said


def test_from_softmax_to_hyla(corpus, run, tmp_path, capsys):
    begin = ["--scale", "smoke", "--steps", "6", "--from", str(run), "--distil-steps", "2"]
    here = ["--root", str(tmp_path), "--device", "cpu"]
    command = [*TRAIN, str(corpus), *begin, *here]
    assert main([*command, "--max-seconds", "1e-6"]) == 75
    assert main(command) == 0
    (path,) = tmp_path.iterdir()
    config, old = (json.loads((one / "config.json").read_text()) for one in (path, run))
    assert config["conversion"]["distil_steps"] == 2
    assert run.name.endswith(config["conversion"]["source"][:12])
    assert config["model"] | {"attention": "softmax"} == old["model"]
    assert config["model"]["attention"] != "softmax"
    assert main(["generate", str(path), "--tokens", "3", "--device", "cpu"]) == 0
    capsys.readouterr()
    for wrong, message in (
        (["--size", "mini"], "leave out --size: the model has the shape of"),
        (["--model.mlp-dim", "48"], "leave out model.mlp_dim 48 (there 256)"),
    ):
        assert main([*command, *wrong]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_quarter_of_few_steps_is_distilled_if_nothing_is_said(corpus, run, tmp_path):
    more = ["--steps", "9", "--from", str(run), "--root", str(tmp_path), "--device", "cpu"]
    assert main([*TRAIN, str(corpus), "--scale", "smoke", *more]) == 0
    (path,) = tmp_path.iterdir()
    assert json.loads((path / "config.json").read_text())["conversion"]["distil_steps"] == 2


def test_a_damaged_run_to_begin_from_is_told(corpus, run, tmp_path, monkeypatch, capsys):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text('{"task_name": ')
    command = [str(corpus), "--scale", "smoke", "--from", str(damaged), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["language", *command])
    assert train_bare() == 1
    assert "config.json" in capsys.readouterr().err
    assert main([*TRAIN, *command]) == 1


def test_from_softmax_to_hyla_without_the_command_lines_packages(
    corpus, run, tmp_path, monkeypatch, capsys
):
    settings = ["steps=6", "conversion.distil_steps=2"]
    more = ["--scale", "smoke", "--root", str(tmp_path), "--device", "cpu", "--set", *settings]
    for begin, code in ((run, 0), (tmp_path / "none", 2)):
        command = ["language", str(corpus), "--from", str(begin), *more]
        monkeypatch.setattr(sys, "argv", command)
        if code == 0:
            assert train_bare() == 0
            continue
        with pytest.raises(SystemExit, match="2"):
            train_bare()
    assert "none is not a run directory" in capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    assert json.loads((path / "config.json").read_text())["conversion"]["distil_steps"] == 2


def test_a_dataset_from_a_c4_file(tmp_path):
    pytest.importorskip("datasets")
    plain = write_json_lines(tmp_path / "lines", documents(), timestamp="2019", url="u")
    c4 = tmp_path / "c4-train.00000-of-01024.json.gz"
    c4.write_bytes(gzip.compress(plain.read_bytes()))
    options = ["--vocab-size", str(VOCAB_SIZE), "--validation-fraction", "0.1", "--workers", "1"]
    streamed = ["--dataset", "json", "--dataset-files", str(c4)]
    assert main(["data", "prepare", str(tmp_path / "a"), *streamed, *options]) == 0
    assert main(["data", "prepare", str(tmp_path / "b"), str(c4), *options]) == 0
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in "ab"]
    assert manifests[0]["splits"] == manifests[1]["splits"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "prepare", "{tmp}/out"], "give either FILES or --dataset"),
        (["data", "prepare", "{tmp}/out", "{tmp}/none.txt"], "none.txt is not there"),
        (["data", "prepare", "{tmp}/out", "{tmp}/a.txt"], "32,000 is too large for this corpus"),
        (["data", "show", "{tmp}"], "is not a prepared corpus"),
        ([*TRAIN, "{tmp}"], "is not a prepared corpus"),
        ([*TRAIN, "{tmp}/a.txt"], "make one with `hyla data prepare FOLDER {tmp}/a.txt`"),
        ([*TRAIN, "{corpus}", "--scale", "papr"], "scale 'papr' is unknown"),
        ([*TRAIN, "{corpus}", "--distil-steps", "5"], "--distil-steps needs --from RUN"),
        ([*TRAIN, "{corpus}", "--strategy", "fsdp"], "'fsdp' needs torchrun"),
        ([*TRAIN, "{corpus}", "--model.num-heads", "3"], "does not divide"),
        ([*TRAIN, "{corpus}", "--sequence-length", "5000"], "too few for one sequence of 5000"),
    ],
    ids=str,
)
def test_wrong_usage_is_explained(corpus, tmp_path, capsys, arguments, message):
    write_text(tmp_path / "a.txt", documents())
    filled = [a.format(tmp=tmp_path, corpus=corpus) for a in arguments]
    assert main(filled) == 2
    assert message.format(tmp=tmp_path) in capsys.readouterr().err


def test_an_interrupted_preparation_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    source = write_text(tmp_path / "a.txt", documents())
    monkeypatch.setattr("hyla.commands.data.prepare_corpus", interrupt)
    assert main(["data", "prepare", str(tmp_path / "out"), str(source)]) == 130
    assert "the same command continues" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(tmp_path, capsys):
    source = write_text(tmp_path / "a.txt", documents())
    assert main(["data", "prepare", str(source / "out"), str(source), "--workers", "1"]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_generate_from_what_is_no_run(tmp_path, capsys):
    for path, reason in ((tmp_path, "it holds no config.json"), (tmp_path / "a", "not exist")):
        assert main(["generate", str(path)]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "is not a run directory: " in said
        assert reason in said
        assert "Errno" not in said


# A GPU machine often has PyTorch and little else.
BARE = """
import runpy, sys
for missing in ("cyclopts", "sentencepiece", "datasets", "pandas", "pyarrow", "submitit"):
    sys.modules[missing] = None
runpy.run_module("hyla.training.language", run_name="__main__")
"""


def test_training_without_the_command_lines_packages(corpus, run, tmp_path):
    """`python -m hyla.training.language` gives the same run, and takes NAME=VALUE."""
    settings = ["steps=6", "model.embed_dim=16", "model.sequence_length=16"]
    more = ["--scale", "smoke", "--root", str(tmp_path), "--device", "cpu"]
    command = [sys.executable, "-c", BARE, str(corpus), *more, "--set", *settings]
    done = subprocess.run([*command, "model.attention=softmax"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    assert path.name == run.name


def test_settings_without_a_value_are_refused(corpus, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["language", str(corpus), "--set", "steps"])
    with pytest.raises(SystemExit, match="2"):
        train_bare()
    assert "--set takes NAME=VALUE, got 'steps'" in capsys.readouterr().err


def test_without_the_command_lines_packages_errors_are_messages_too(
    corpus, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    command = ["language", str(corpus), "--scale", "smoke", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*command, "--strategy", "fsdp"])
    with pytest.raises(SystemExit, match="2"):
        train_bare()
    assert "strategy 'fsdp' needs torchrun" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*command, "--root", str(tmp_path / "file")])
    assert train_bare() == 1
    assert "is not a directory. Keep the runs somewhere else." in capsys.readouterr().err


def test_a_rank_that_hears_of_an_error_of_the_first_shows_no_traceback():
    assert exit_code(RankFailedError("Disk full")) == 1

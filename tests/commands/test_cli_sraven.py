"""`hyla sraven` as a person at a shell meets it."""

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hyla.cli import main
from hyla.commands.shared.exits import FAILURE, USAGE
from hyla.tasks.sraven import SravenConfig
from hyla.tasks.sraven.faces.rendering import to_text
from hyla.tasks.sraven.problem import Problems
from hyla.tasks.sraven.variants import VARIANTS, variant_named

AMBIGUOUS, UNAMBIGUOUS = 1, 4  # instances of the split test, seed 0


def output(capsys, *arguments: str) -> str:
    assert main(["sraven", *arguments]) == 0
    return capsys.readouterr().out


def test_help_names_the_subcommands(capsys):
    shown = output(capsys, "--help")
    names = ("show", "export", "audit", "variants", "predict", "submit", "leaderboard", "think")
    for name in names:
        assert re.search(rf"│ {name} +\w", shown)
    shown = output(capsys, "show", "--help")
    assert "Examples" in shown
    assert "--task.num-features" in shown
    assert "fuzzy" not in shown
    assert "num-terms" not in shown


def test_show_prints_the_instance_of_the_address(capsys):
    shown = output(capsys, "show", "--split", "ood", "--seed", "2", "--index", "9")
    problem = Problems(SravenConfig(), "ood", seed=2)[9]
    assert to_text(problem).plain in shown
    assert "ood, seed 2, instance 9" in shown
    assert not any(rule in shown for rule in problem.rules)


def test_show_unpermuted(capsys):
    shown = output(capsys, "show", "--unpermuted", "--index", "3")
    assert to_text(Problems(SravenConfig(), "test_unpermuted", seed=0)[3]).plain in shown
    assert shown == output(capsys, "show", "--split", "test_unpermuted", "--index", "3")


def test_show_takes_the_task_s_settings(capsys):
    config = SravenConfig(num_features=3, num_values=5)
    shown = output(capsys, "show", "--task.num-features", "3", "--task.num-values", "5")
    assert to_text(Problems(config, "test", seed=0)[0]).plain in shown


def test_show_answer_says_whether_there_are_others(capsys):
    shown = output(capsys, "show", "--index", str(UNAMBIGUOUS), "--answer")
    assert "Unambiguous" in shown
    shown = output(capsys, "show", "--index", str(AMBIGUOUS), "--answer")
    assert "Ambiguous: readings of the context prescribe 2 answers" in shown
    assert re.search(r"7 6 0 0 +0\.5 +the answer", shown)


def test_show_distractors(capsys):
    shown = output(capsys, "show", "--task.num-distractors", "2", "--answer")
    assert shown.count("● distractor") == 2
    assert "the solver takes no distractors or blanks" in shown


def test_show_readings(capsys):
    shown = output(capsys, "show", "--index", str(AMBIGUOUS), "--readings")
    assert "Readings of the context: 2." in shown
    assert "subtraction 1→2→4" in shown


@pytest.mark.parametrize("shapes", [[], ["--shapes"]])
def test_show_draws(tmp_path, capsys, shapes: list[str]):
    pytest.importorskip("matplotlib")
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    shown = output(capsys, "show", "--svg", str(svg), "--png", str(png), *shapes)
    assert f"Drawn to {svg}" in shown
    ElementTree.parse(svg)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_export(tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "data"
    arguments = ["export", str(out), "--instances", "30", "--seed", "1", "--task.num-features", "3"]
    shown = output(capsys, *arguments, "--split", "train", "ood")
    assert shown.startswith("Making 30 instances of each of train, ood\n")
    assert f"\n30 instances of each of train, ood in {out} (" in shown
    rows = parquet.read_table(out / "data" / "ood-00000-of-00001.parquet").to_pylist()
    problem = Problems(SravenConfig(num_features=3), "ood", seed=1)[29]
    assert rows[29]["query"] == list(problem.answer)
    assert "ambiguous" in rows[29]
    output(capsys, *arguments, "--no-labels")
    files = {path.name for path in (out / "data").iterdir()}
    assert files == {f"{split}-00000-of-00001.parquet" for split in ("train", "test", "ood")}


def test_export_of_a_variant_has_its_settings(tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "data"
    shown = output(capsys, "export", str(out), "--variant", "trained1", "--instances", "20")
    assert "20 instances of each of ood" in shown
    rows = parquet.read_table(out / "data" / "ood-00000-of-00001.parquet").to_pylist()
    problem = Problems(variant_named("trained1").config, "ood", seed=0)[19]
    assert rows[19]["query"] == list(problem.answer)


def test_variants_are_listed_with_hash_and_ceiling(capsys):
    shown = output(capsys, "variants")
    for name, variant in VARIANTS.items():
        assert re.search(rf"^{name} +{variant.published['hash'][:12]} ", shown, re.MULTILINE)
    assert re.search(r"^paper +\w+ +94\.21 ", shown, re.MULTILINE)
    assert re.search(r"^distractors +\w+ +- ", shown, re.MULTILINE)
    assert "zero tokens, not scored" in output(capsys, "variants", "longer")


def test_a_name_prints_everything_that_it_fixes(capsys):
    shown = output(capsys, "variants", "trained1")
    told = json.loads(shown[shown.index("{\n") :])
    assert told["settings"] == json.loads(
        json.dumps(dataclasses.asdict(variant_named("trained1").config))
    )
    assert told["settings"]["num_features"] == 4  # a default
    assert "order of its own" in told["permutation"]
    trained = [set(names.split(", ")) for names in told["trained_combinations"]]
    assert len(trained) == told["combinations"]["train"] == 4
    assert set().union(*trained) == set(SravenConfig().rules)
    assert "trained_combinations" not in output(capsys, "variants", "trained25")


def test_variants_that_are_not_what_was_published_are_told(monkeypatch, capsys):
    name = "features3"
    assert json.loads(output(capsys, "variants", name, "--measure", "--json")) == {
        name: variant_named(name).published
    }
    changed = {name: {**variant_named(name).published, "hash": "0" * 64}}
    monkeypatch.setattr("hyla.tasks.sraven.variants._published", lambda: changed)
    assert main(["sraven", "variants", name, "--measure"]) == FAILURE
    assert "features3 is not what was published" in capsys.readouterr().out


def test_audit_as_table_and_as_json(capsys):
    shown = output(capsys, "audit", "--instances", "50")
    assert re.search(r"ambiguous by definition +\d+\.\d\d", shown)
    rows = json.loads(output(capsys, "audit", "--instances", "50", "--json"))
    assert {"train", "test", "ood"} <= {row["split"] for row in rows}
    assert all(0 <= row["ceiling"] <= 1 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shwo"], 'Did you mean "show"?'),
        (["show", "--split", "odd"], "did you mean 'ood'?"),
        (["show", "--split", "train", "--unpermuted"], "for the splits test and ood, not for"),
        (["show", "--index", "-1"], "index must lie in [0, 4294967296)"),
        (["show", "--shapes"], "add --svg FILE or --png FILE"),
        (["show", "--task.num-features", "1"], "num_features must be at least 2"),
        (["show", "--task.num-terms", "3"], "there is no option --task.num-terms"),
        (["show", "--task.num-distractors", "1", "--readings"], "does not work with distractors"),
        (
            ["export", "out", "--instances", "5", "--task.num-distractors", "1"],
            "export without them (--no-labels)",
        ),
        (["audit", "--task.num-distractors", "1"], "the audit does not work with distractors"),
        (
            ["show", "--task.num-features", "6", "--svg", "a.svg", "--shapes"],
            "draw the instance with numbers instead",
        ),
        (["export", "out", "--instances", "0"], "instances must be at least 1"),
        (["export", "out"], "--instances"),
        (["export", "out", "--variant", "papr"], "did you mean 'paper'?"),
        (
            ["export", "out", "--variant", "paper", "--task.num-values", "9"],
            "fixes all settings of the task: leave out --task.num-values",
        ),
        (["variants", "longest"], "did you mean 'longer'?"),
        (["audit", "--instances", "0"], "instances must be at least 1"),
        (
            ["predict", "sraven-hila", "--variant", "paper", "--out", "a.parquet"],
            "model 'sraven-hila' is unknown (did you mean 'sraven-hyla'?); choose from "
            "sraven-hyla, sraven-softmax, chance, solver, or give a run directory",
        ),
        (
            ["predict", "runs/sraven-hila", "--variant", "paper", "--out", "a.parquet"],
            "runs/sraven-hila is not a run directory: it does not exist",
        ),
        (
            ["think", "sraven-sofmax", "--variant", "paper"],
            "(did you mean 'sraven-softmax'?); choose from sraven-hyla, sraven-softmax, or give a",
        ),
        (["predict"], "hyla sraven predict needs WHO: A run directory; solver or chance; or a"),
        (["predict", "solver", "--varant", "paper"], "did you mean '--variant'?"),
        (["predict", "solver", "--variant", "paper"], "needs --out: File to write; see hyla"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_answered_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["sraven", *arguments]) == USAGE
    shown = capsys.readouterr().err
    assert message in shown
    assert not list(tmp_path.iterdir())


def test_export_refuses_a_folder_that_is_not_its_own(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["sraven", "export", str(tmp_path), "--instances", "5"]) == USAGE
    assert "holds 'notes.txt'" in capsys.readouterr().err


def test_what_cannot_be_written_is_a_message(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["sraven", "show", "--svg", str(blocked / "a.svg")]) == USAGE
    assert "cannot write" in capsys.readouterr().err

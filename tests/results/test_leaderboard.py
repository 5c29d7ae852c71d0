"""Files of answers, scored: perfect ones, random ones, and every kind of broken one."""

import dataclasses
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from hyla.cli import main  # noqa: E402
from hyla.commands.shared.exits import USAGE  # noqa: E402
from hyla.explorer.answerers import whose_answers  # noqa: E402
from hyla.latents.measures.confidence import wilson_interval  # noqa: E402
from hyla.nn import Transformer  # noqa: E402
from hyla.results.leaderboard import read_entries, score  # noqa: E402
from hyla.results.leaderboard.answers import (  # noqa: E402
    BASELINES,
    by_chance,
    by_model,
    by_solver,
)
from hyla.results.leaderboard.page import leaderboard_page  # noqa: E402
from hyla.results.leaderboard.predictions import (  # noqa: E402
    read_about,
    read_predictions,
    write_predictions,
)
from hyla.tasks.sraven.variants import INSTANCES, variant_named  # noqa: E402
from hyla.training import (  # noqa: E402
    TrainConfig,
    config_from_tree,
    load_preset,
    merge,
    run_path,
    train,
)

PAPER = variant_named("paper")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def truth() -> torch.Tensor:
    return PAPER.evaluation().panels[:, -1, -1]


def submit(file: Path, tmp_path: Path, *arguments: str, variant: str = "paper") -> int:
    out = ["--entries", str(tmp_path / "entries"), "--model", "My model!"]
    return main(["sraven", "submit", str(file), "--variant", variant, *out, *arguments])


def test_perfect_answers_are_all_right_and_make_an_entry(tmp_path, truth, capsys):
    file = tmp_path / "answers.parquet"
    write_predictions(file, truth)
    arguments = ("--seed", "3", "--trained-on", "1000", "--seconds", "7.5", "--link", "there")
    assert submit(file, tmp_path, *arguments) == 0
    said = capsys.readouterr().out
    assert "100.00" in said
    assert "above the ceiling" in said  # nobody can infer them
    assert "; **above the ceiling** |" in leaderboard_page(tmp_path / "entries")
    path = tmp_path / "entries" / "paper" / "my-model-seed3.json"
    shown = json.loads(path.read_text())
    assert shown["score"]["accuracy"]["value"] == 1
    assert shown["score"]["share_of_ceiling"] == pytest.approx(1 / PAPER.published["ceiling"], 1e-5)
    [entry] = read_entries(tmp_path / "entries")
    assert (entry.seed, entry.trained_on, entry.seconds, entry.link) == (3, 1000, 7.5, "there")
    assert entry.score.whole.right == entry.score.whole.instances == INSTANCES
    assert entry.score.unambiguous is not None
    assert entry.score.ambiguous is not None
    assert entry.score.unambiguous.instances + entry.score.ambiguous.instances == INSTANCES
    share = entry.score.ambiguous.instances / INSTANCES
    assert share == pytest.approx(PAPER.published["ambiguous"], abs=1e-6)
    assert set(entry.score.by_rule.values()) == {1.0}


def test_random_answers_are_seldom_right():
    reached = score(PAPER, by_chance(PAPER))
    assert reached.whole.accuracy.low < 8**-4 < reached.whole.accuracy.high
    assert all(abs(share - 1 / 8) < 0.01 for share in reached.by_rule.values())


def test_the_solver_is_right_wherever_there_is_one_answer():
    reached = score(PAPER, by_solver(PAPER))
    assert reached.unambiguous is not None
    assert reached.unambiguous.right == reached.unambiguous.instances
    assert reached.share_of_ceiling is not None
    assert 0.9 < reached.share_of_ceiling < 1.01


def test_scores_count_what_is_wrong(truth):
    answers = truth.clone()
    answers[:100, 2] = (answers[:100, 2] + 1) % 8
    reached = score(PAPER, answers)
    assert reached.whole.right == INSTANCES - 100
    assert reached.whole.accuracy == wilson_interval(INSTANCES - 100, INSTANCES)
    assert reached.unambiguous is not None
    assert reached.ambiguous is not None
    assert reached.unambiguous.right + reached.ambiguous.right == INSTANCES - 100
    wrong = torch.zeros(8)
    instances = PAPER.evaluation()
    for rules, order in zip(instances.rules[:100], instances.permutations[:100, -1], strict=True):
        wrong[rules[order[2]]] += 1
    counts = torch.bincount(instances.rules.flatten(), minlength=8)
    for rule, missed, count in zip(PAPER.config.rules, wrong, counts, strict=True):
        assert reached.by_rule[rule] == pytest.approx(1 - float(missed / count), abs=1e-5)


def test_distractors_do_not_count():
    variant = variant_named("distractors")
    instances = variant.evaluation()
    answers = instances.panels[:, -1, -1].clone()
    rules = instances.rules.gather(-1, instances.permutations[:, -1])
    free = rules == variant.config.distractor_label
    answers[free] = (answers[free] + 1) % 8
    reached = score(variant, answers)
    assert reached.whole.right == INSTANCES
    assert reached.ceiling is reached.share_of_ceiling is reached.ambiguous is None


def test_the_order_of_rows_and_further_columns_do_not_matter(tmp_path, truth):
    file = tmp_path / "answers.parquet"
    order = torch.randperm(INSTANCES, generator=torch.Generator().manual_seed(0))
    table = pa.table(
        {
            "comment": ["x"] * INSTANCES,
            "prediction": pa.array(truth[order].tolist(), pa.list_(pa.int64())),
            "index": order.tolist(),
        }
    )
    parquet.write_table(table, file)
    assert torch.equal(read_predictions(file, PAPER), truth)


def broken(truth: torch.Tensor, **changes) -> Any:
    """A table of right answers, with other rows in the place of some."""
    index, rows = list(range(INSTANCES)), truth.tolist()
    for row, value in changes.get("rows", {}).items():
        rows[row] = value
    for row, value in changes.get("index", {}).items():
        index[row] = value
    for row in changes.get("without", ()):
        del index[row], rows[row]
    return pa.table({"index": index, "prediction": rows})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": {7: [1, 2, 3]}}, "row 7: a panel of variant paper has 4 integers, got 3"),
        ({"rows": {8: [1, 2, 3, 8]}}, "row 8: 8 lies outside [0, 8)"),
        ({"rows": {9: [1, -1, 3, 0]}}, "row 9: -1 lies outside [0, 8)"),
        ({"rows": {10: None}}, "row 10: prediction is null"),
        ({"rows": {11: [1, None, 2, 3]}}, "row 11: prediction holds a null"),
        ({"index": {12: 51200}}, "row 12: index 51200 lies outside [0, 51200)"),
        ({"index": {13: -1}}, "row 13: index -1 lies outside"),
        ({"index": {14: 3}}, "row 14: index 3 was answered before, in row 3"),
        ({"index": {15: None}}, "row 15: index is null"),
        ({"without": (20, 20)}, "no row answers instance 20 (2 of the 51,200"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_a_broken_row_is_named(tmp_path, truth, changes, message, capsys):
    file = tmp_path / "answers.parquet"
    parquet.write_table(broken(truth, **changes), file)
    assert submit(file, tmp_path) == USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "entries").exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"index": [0], "answer": [[1]]}, "needs the columns index and prediction, each once"),
        ({"index": [0.5], "prediction": [[1]]}, "index must hold integers, got double"),
        ({"index": [0], "prediction": [1]}, "prediction must hold lists of integers, got int64"),
        ({"index": [0], "prediction": [["1"]]}, "lists of integers, got list<"),
    ],
)
def test_wrong_columns_are_told(tmp_path, columns, message, capsys):
    file = tmp_path / "answers.parquet"
    parquet.write_table(pa.table(columns), file)
    assert submit(file, tmp_path) == USAGE
    assert message in capsys.readouterr().err


def test_what_is_no_parquet_is_told(tmp_path, capsys):
    file = tmp_path / "answers.parquet"
    assert submit(file, tmp_path) == USAGE
    assert "there is no file" in capsys.readouterr().err
    assert submit(tmp_path, tmp_path) == USAGE
    assert "is a folder: answers are one Parquet file" in capsys.readouterr().err
    file.write_text("index,prediction")
    assert submit(file, tmp_path) == USAGE
    assert "is not a Parquet file" in capsys.readouterr().err


def trained(**task) -> tuple[Transformer, TrainConfig]:
    small = {"embed_dim": 8, "mlp_dim": 8, "qk_dim": 4, "v_dim": 4, "num_heads": 2, "num_layers": 1}
    config = config_from_tree(merge(load_preset("sraven", "paper"), {"task": task, "model": small}))
    return Transformer(config.model), config


@pytest.mark.integration
def test_a_model_answers_as_it_would_in_evaluation():
    model, config = trained()
    answers = by_model(PAPER, model, config, seed=0)
    batch = PAPER.task.batch("ood", seed=0, index=3, batch_size=64)
    assert torch.equal(answers[192:256], model(batch.inputs)[:, -4:].argmax(-1))


@pytest.mark.parametrize(
    ("task", "seed", "message"),
    [
        ({}, 1, r"trained on \d+ of the 82 combinations that variant paper holds out.* seed 1"),
        ({"num_values": 9}, 0, "trained with num_values 9, and variant paper has 8"),
        ({"unambiguous": True}, 0, "trained with unambiguous True"),
    ],
)
def test_a_model_that_met_what_is_held_out_is_refused(task, seed, message):
    model, config = trained(**task)
    with pytest.raises(ValueError, match=message):
        by_model(PAPER, model, config, seed=seed)


def test_predict_writes_what_submit_reads(tmp_path, capsys):
    file = tmp_path / "answers.parquet"
    asked = ["sraven", "predict", "chance", "--variant", "longer", "--out", str(file)]
    assert main(asked) == 0
    assert "51,200 answers" in capsys.readouterr().out
    assert submit(file, tmp_path, "--dry-run", variant="longer") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Making the 51,200 instances of variant longer")
    assert shown.endswith("Nothing was written (--dry-run).\n")
    assert not (tmp_path / "entries").exists()


def test_predict_says_how_long_it_will_take(tmp_path, monkeypatch, capsys):
    """Elsewhere than in a terminal, too."""
    predict = import_module("hyla.commands.sraven.predict")  # as a name, that is the function
    monkeypatch.setattr(predict, "_PLAIN_SECONDS", 0.0)
    monkeypatch.setattr(predict, "load_answerer", lambda *asked: (*trained(), 0))
    monkeypatch.setattr(predict, "whose_answers", lambda *asked, label: {})
    file = str(tmp_path / "answers.parquet")
    assert main(["sraven", "predict", "own", "--variant", "paper", "--out", file]) == 0
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first == "Answering 51,200 instances of paper"
    assert re.fullmatch(r"1,024 of 51,200, about \d:\d\d:\d\d left", second)
    assert last == f"51,200 answers in {file}"


@pytest.mark.parametrize("who", ["chance", "sraven-softmax"])
def test_predict_refuses_a_member_of_what_is_no_run(tmp_path, who, capsys):
    file = tmp_path / "answers.parquet"
    asked = ["sraven", "predict", who, "--variant", "paper", "--out", str(file), "--member", "1"]
    assert main(asked) == USAGE
    assert f"{who} is a single model" in " ".join(capsys.readouterr().err.split())
    assert not file.exists()


def test_an_error_while_answering_is_not_the_users(tmp_path, monkeypatch, capsys):
    def broken(variant):
        raise ValueError("of the computation")

    where = ["--out", str(tmp_path / "answers.parquet")]
    monkeypatch.setitem(BASELINES, "solver", broken)
    with pytest.raises(ValueError, match="of the computation"):
        main(["sraven", "predict", "solver", "--variant", "paper", *where])
    assert main(["sraven", "predict", "solver", "--variant", "distractors", *where]) == USAGE
    assert "the solver does not work with distractors" in " ".join(capsys.readouterr().err.split())
    of_another = ["sraven", "predict", "sraven-softmax", "--variant", "paper-split1", *where]
    assert main(of_another) == USAGE


@pytest.mark.integration
def test_a_file_says_whose_answers_it_holds(tmp_path, capsys):
    run, file = finished_run(tmp_path), tmp_path / "answers.parquet"
    entries = ["--entries", str(tmp_path / "entries")]
    asked = ["sraven", "predict", str(run), "--variant", "paper", "--out", str(file)]
    assert main([*asked, "--member", "1", "--device", "cpu"]) == 0
    assert main(["sraven", "submit", str(file), *entries]) == 0
    [entry] = read_entries(tmp_path / "entries")
    assert (entry.variant, entry.model, entry.seed) == ("paper", "HYLA, 1 layers", 7)
    assert entry.trained_on == 2 * 16
    assert entry.seconds is not None
    assert entry.device
    assert entry.note == "one of 2 models trained at once"
    assert read_about(file)["run"] == run.name

    # What is said goes before.
    assert main(["sraven", "submit", str(file), *entries, "--model", "B", "--seed", "9"]) == 0
    assert (tmp_path / "entries" / "paper" / "b-seed9.json").exists()
    capsys.readouterr()
    assert main(["sraven", "submit", str(file), *entries, "--variant", "paper-split1"]) == USAGE
    assert "answers variant paper, not paper-split1" in capsys.readouterr().err


def test_of_a_model_that_comes_with_hyla_the_training_is_told():
    for name in ("sraven-hyla", "sraven-softmax"):  # of one population
        known = whose_answers(name, 0, PAPER, label=str)
        assert known["seconds"] == pytest.approx(675.3, abs=0.1)
        assert known["note"] == "comes with hyla; one of 12 models trained at once"
    earlier = whose_answers("fuzzy-hyla", 0, PAPER, label=str)  # packed before it was kept
    assert "seconds" not in earlier
    assert earlier["note"] == "comes with hyla"


def finished_run(tmp_path: Path) -> Path:
    small = {"embed_dim": 8, "mlp_dim": 8, "qk_dim": 4, "v_dim": 4, "num_heads": 2, "num_layers": 1}
    changes = {
        "task": {"split_seed": 0},
        "model": small,
        "members": {"seed": [3, 7], "warmup_steps": [1]},
        "steps": 2,
        "batch_size": 16,
        "evaluation": {"every": 2, "instances": 16, "final_instances": 16},
    }
    config = config_from_tree(merge(load_preset("sraven", "paper"), changes))
    train(config, root=tmp_path / "runs", device="cpu")
    return run_path(config, tmp_path / "runs")


def test_a_file_that_says_nothing_needs_to_be_told(tmp_path, truth, capsys):
    file = tmp_path / "answers.parquet"
    write_predictions(file, truth)
    assert read_about(file) == {}
    for options, said in (
        (["--model", "A"], "say which variant is answered by --variant"),
        (["--variant", "paper"], "say whose answers these are by --model"),
    ):
        assert main(["sraven", "submit", str(file), *options]) == USAGE
        assert said in capsys.readouterr().err
    write_predictions(file, truth, {"variant": "paper", "hash": "0", "model": "A"})
    assert main(["sraven", "submit", str(file)]) == USAGE
    assert "answers variant paper as it was" in capsys.readouterr().err


def test_seeds_of_a_model_are_one_line_of_the_page(tmp_path, truth, capsys):
    file = tmp_path / "answers.parquet"
    for seed, wrong in enumerate((5120, 10240)):
        answers = truth.clone()
        answers[:wrong, 0] = (answers[:wrong, 0] + 1) % 8
        write_predictions(file, answers)
        assert submit(file, tmp_path, "--seed", str(seed), "--note", "of a test") == 0
    page = leaderboard_page(tmp_path / "entries")
    assert "| My model!; of a test | 85.00 (80.00 to 90.00) | 90.2 |" in page
    assert "| 0, 1 |" in page
    assert "## longer" not in page


def chance_entries(folder: Path, *changes: dict[str, Any]) -> Path:
    """Entries of who answers by chance, one for each of these changes; the folder."""
    own = ROOT / "results" / "sraven" / "leaderboard" / "paper" / "chance.json"
    (folder / "paper").mkdir(parents=True)
    for number, change in enumerate(changes):
        tree = merge(json.loads(own.read_text(encoding="utf-8")), change)
        (folder / "paper" / f"{number}.json").write_text(json.dumps(tree))
    return folder


def test_seeds_that_were_trained_differently_are_told_together(tmp_path):
    seeds = [
        {"seed": 0, "trained_on": 1000, "device": "a GPU", "note": "with\na | break"},
        {"seed": 1, "trained_on": 2000, "seconds": 4.0, "device": "a CPU"},
        {"seed": 2, "trained_on": 3000, "seconds": 8.0, "device": "a CPU"},
        {"seed": 3, "seconds": 2.0},
    ]
    page = leaderboard_page(chance_entries(tmp_path, *seeds))
    assert "| Chance; with a / break | " in page
    assert "| 0, 1, 2, 3 | 1,000 to 3,000 | not told, a GPU; 6 s, a CPU; 2 s |" in page


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"whole": {"right": 51201}}, "more of its answers are right than there are"),
        ({"whole": {"right": -1}}, "or fewer than none"),
        ({"whole": {"right": 9}}, "do not add up to those of the whole"),
        ({"whole": {"instances": 100}}, r"of \[100, 38526, 12674\] instances, and those of paper"),
        ({"unambiguous": None, "ambiguous": None}, r"parts are of \[51200\] instances"),
        ({"ceiling": 0.5}, "its ceiling is 0.5, and that of paper is 0.942061"),
        ({"by_rule": {"addition": 1.5}}, "by_rule must hold a share from 0 to 1"),
        ({"by_rule": {"multiplication": 0.5}}, "for rules of the variant"),
        ({"whole": {"right": "8"}}, "not supported between"),
    ],
)
def test_what_no_answers_reach_is_refused(tmp_path, score: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=rf"0\.json is no entry of the leaderboard: .*{message}"):
        read_entries(chance_entries(tmp_path, {"score": score}))


def test_a_training_of_negative_length_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"0\.json is no entry .*seconds is not negative, got -1"):
        read_entries(chance_entries(tmp_path, {"seconds": -1}))


def test_an_entry_of_another_variant_is_found(tmp_path, truth):
    file = tmp_path / "answers.parquet"
    write_predictions(file, truth)
    assert submit(file, tmp_path) == 0
    path = tmp_path / "entries" / "paper" / "my-model.json"
    path.write_text(path.read_text().replace(PAPER.published["hash"], "0" * 64))
    with pytest.raises(ValueError, match="was scored on another variant than paper is now"):
        read_entries(tmp_path / "entries")
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no entry of the leaderboard"):
        read_entries(tmp_path / "entries")


def test_the_page_of_the_documentation_is_that_of_the_entries():
    page = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    folder = ROOT / "results" / "sraven" / "leaderboard"
    assert page == leaderboard_page(folder), "run `hyla sraven leaderboard`"
    assert {entry.model for entry in read_entries(folder)} >= {"Chance", "Exact solver"}


def test_entries_are_what_their_answers_reach():
    entries = read_entries(ROOT / "results" / "sraven" / "leaderboard")
    [chance] = [e for e in entries if (e.variant, e.model) == ("paper", "Chance")]
    again = score(PAPER, by_chance(PAPER))
    assert dataclasses.asdict(chance.score) == dataclasses.asdict(again)

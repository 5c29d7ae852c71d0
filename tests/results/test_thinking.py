"""Thinking longer: both ways begin with the plain answer, and take as many passes."""

import json

import pytest
import torch
from torch import Tensor

from hyla.cli import main
from hyla.commands.shared.exits import USAGE
from hyla.explorer.packed import read_description, read_weights, shipped_folder
from hyla.figures.drawing import Lines
from hyla.lab.sraven_figures import thinking_figure
from hyla.latents.measures.confidence import wilson_interval
from hyla.nn import Transformer
from hyla.results import thinking
from hyla.results.thinking import thinking_curve
from hyla.tasks.sraven.equivalents import Shuffled, shuffled
from hyla.tasks.sraven.variants import variant_named
from tiny_runs import tiny_model

PAPER = variant_named("paper")


def softmax() -> Transformer:
    stem = shipped_folder() / "sraven-softmax"
    return read_weights(stem, read_description(stem)[1])


def test_without_a_step_both_ways_are_the_plain_answer():
    model = softmax()
    batch = PAPER.task.batch("ood", seed=0, index=0, batch_size=32)
    with torch.no_grad():
        right = (model(batch.inputs)[:, -4:].argmax(-1) == batch.targets).all(-1)
    searched, again = thinking_curve(PAPER, model, split="ood", instances=32, steps=[0])
    assert torch.equal(searched.right, right)
    assert torch.equal(again.right, right)
    assert searched.passes == again.passes == 1
    assert searched.changed(again) == (0, 0)


def test_the_rows_are_explained_in_parts_as_in_one(monkeypatch):
    torch.manual_seed(0)
    model = Transformer(tiny_model(PAPER.task))
    options = {"split": "ood", "instances": 10, "steps": [2, 0], "learning_rate": 0.03}
    whole = thinking_curve(PAPER, model, **options)
    monkeypatch.setattr(thinking, "_BATCH", 4)
    parts = thinking_curve(PAPER, model, **options)
    found = [(thought.way, thought.steps, thought.passes) for thought in whole]
    assert found == [("search", 0, 1), ("search", 2, 9), ("again", 0, 1), ("again", 2, 9)]
    for one, other in zip(whole[:2], parts[:2], strict=True):
        torch.testing.assert_close(one.row_losses, other.row_losses, rtol=1e-3, atol=1e-3)
        assert len(other.right) == 10
    first, last = whole[:2]
    assert last.row_losses.mean() < first.row_losses.mean()


def test_what_is_asked_again_has_nothing_to_do_with_other_steps(monkeypatch):
    asked: list[Tensor] = []

    def recorded(panels: Tensor, random: torch.Generator) -> Shuffled:
        asked.append((same := shuffled(panels, random)).panels)
        return same

    monkeypatch.setattr(thinking, "shuffled", recorded)
    monkeypatch.setattr(thinking, "_BATCH", 4)
    model = Transformer(tiny_model(PAPER.task))
    thinking_curve(PAPER, model, split="ood", instances=8, steps=[1])
    alone = [asked[:4], asked[4:]]  # four more passes for each of two batches
    asked.clear()
    thinking_curve(PAPER, model, split="ood", instances=8, steps=[0, 1, 2])
    for batch, want in zip((asked[:8], asked[8:]), alone, strict=True):
        assert all(map(torch.equal, batch, want))


def test_the_command_shows_the_curve(capsys):
    arguments = ["--variant", "paper", "--instances", "8", "--steps", "0", "1"]
    assert main(["sraven", "think", "sraven-softmax", *arguments]) == 0
    shown = capsys.readouterr().out
    assert shown.count("search on the code") == shown.count("asked again in other words") == 2


def test_the_curve_is_written_and_drawn(tmp_path):
    file, picture = tmp_path / "out" / "curve.json", tmp_path / "curve.pdf"
    arguments = ["--variant", "paper", "--instances", "8", "--steps", "0", "1"]
    written = ["--json", str(file), "--figure", str(picture)]
    assert main(["sraven", "think", "sraven-softmax", *arguments, *written]) == 0
    told = json.loads(file.read_text())
    assert (told["model"], told["variant"], told["instances"]) == ("sraven-softmax", "paper", 8)
    assert [(r["method"], r["steps"], r["passes"]) for r in told["rows"]] == [
        ("search", 0, 1),
        ("search", 1, 5),
        ("again", 0, 1),
        ("again", 1, 5),
    ]
    first = told["rows"][0]
    assert first["of"] == 8
    assert first["interval"] == pytest.approx(wilson_interval(first["right"], 8)[1:], abs=1e-6)
    for row in told["rows"]:
        assert row["right"] == first["right"] + row["gained"] - row["lost"]
    assert picture.read_bytes().startswith(b"%PDF")

    [[panel]] = thinking_figure([told, told | {"model": "another"}]).panels
    assert isinstance(panel, Lines)
    assert panel.x == ["1", "5"]
    assert [(line.name, line.dashed) for line in panel.series] == [
        ("sraven-softmax, search on the code", True),
        ("sraven-softmax, asked again in other words", False),
        ("another, search on the code", True),
        ("another, asked again in other words", False),
    ]
    line = panel.series[0]
    assert line.y[0] == first["right"] / 8
    assert line.y[0] - line.reach[0][0] == pytest.approx(first["interval"][0])
    assert line.y[0] + line.reach[1][0] == pytest.approx(first["interval"][1])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--variant", "paper-split1"], "was trained on"),
        (["--variant", "paper", "--steps", "-1"], "steps must be numbers from 0"),
        (["--variant", "paper", "--member", "7"], "sraven-softmax is a single model: --member 7"),
        (["--variant", "paper", "--split", "odd"], "split 'odd' is unknown"),
        (["--variant", "paper", "--instances", "0"], "instances must be at least 1"),
        (["--variant", "paper", "--learning-rate", "0"], "learning_rate must be more than 0"),
        (["--variant", "paper", "--figure", "a.svg"], "a picture is called *.png or *.pdf"),
    ],
)
def test_what_cannot_be_measured_is_refused(capsys, arguments: list[str], reason: str):
    assert main(["sraven", "think", "sraven-softmax", *arguments]) == USAGE
    assert reason in " ".join(capsys.readouterr().err.split())


def test_a_split_that_is_none_is_no_split_without_rules_either():
    longer = variant_named("longer")
    with pytest.raises(ValueError, match=r"split 'odd' is unknown .*'ood'\?"):
        thinking_curve(longer, softmax(), split="odd", instances=2, steps=[0])


def test_an_error_while_thinking_is_not_the_users(monkeypatch):
    def broken(*args, **options):
        raise ValueError("of the computation")

    monkeypatch.setattr(thinking, "searched", broken)
    with pytest.raises(ValueError, match="of the computation"):
        main(["sraven", "think", "sraven-softmax", "--variant", "paper", "--instances", "2"])


def test_what_follows_no_rule_is_refused():
    with pytest.raises(ValueError, match="follows no rule"):
        thinking_curve(variant_named("distractors"), softmax(), split="ood", instances=2, steps=[0])

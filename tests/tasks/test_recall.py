"""Associative recall: keys whose values are asked for, and nothing that gives them away."""

import pytest
import torch

from hyla.cli import main
from hyla.figures.drawing import Lines
from hyla.lab.methods import methods_of, results_of
from hyla.lab.registry import load
from hyla.results.conditions import Conditions
from hyla.results.runs import final_rows, read_runs
from hyla.results.tables import MEMBER, Tables
from hyla.tasks import Recall, RecallConfig, TaskDataset
from hyla.tasks.recall.objective import NOT_ASKED
from hyla.training import Member, Population
from hyla.training.identity import method_key
from tiny_runs import tiny_model

CONFIG = RecallConfig(pairs=3, length=14, vocabulary=12)
TASK = Recall(CONFIG)


def tokens_of(batch):
    return batch.inputs.argmax(-1)


def test_every_key_is_asked_for_once_after_the_pairs():
    batch = TASK.batch("train", seed=0, index=0, batch_size=400)
    assert batch.inputs.shape == (400, 14, 12)
    assert (batch.inputs.sum(-1) == 1).all()
    for tokens, targets, keys in zip(tokens_of(batch), batch.targets, batch.labels, strict=True):
        pairs = {int(k): int(v) - 6 for k, v in tokens[:6].view(3, 2)}
        assert set(pairs) == set(keys.tolist())
        assert len(pairs) == 3
        later = tokens[6:]
        asked = targets != NOT_ASKED
        assert torch.equal(asked, later < 6)  # what is no question is a value
        assert sorted(later[asked].tolist()) == sorted(pairs)
        assert [pairs[int(key)] for key in later[asked]] == targets[asked].tolist()


def test_keys_values_and_places_are_uniform_and_independent():
    batch = TASK.batch("test", seed=1, index=0, batch_size=20000)
    tokens = tokens_of(batch)
    for position in range(6):
        counts = torch.bincount(tokens[:, position] % 6, minlength=6) / 20000
        assert torch.allclose(counts, torch.full((6,), 1 / 6), atol=0.012)
    asked = (batch.targets != NOT_ASKED).double().mean(0)
    assert torch.allclose(asked, torch.full_like(asked, 3 / 8), atol=0.015)
    noise = tokens[:, 6:][batch.targets == NOT_ASKED] - 6
    counts = torch.bincount(noise, minlength=6) / len(noise)
    assert torch.allclose(counts, torch.full((6,), 1 / 6), atol=0.01)


def test_batches_tile_one_sequence_and_splits_differ():
    whole = TASK.batch("train", seed=2, index=0, batch_size=12)
    part = TASK.batch("train", seed=2, index=2, batch_size=4)
    assert all(torch.equal(a[8:], b) for a, b in zip(whole, part, strict=True))
    other = TASK.batch("validation", seed=2, index=0, batch_size=12)
    assert not torch.equal(whole.inputs, other.inputs)
    members = TASK.sampler("train", seeds=[5, 2], batch_size=12)(0)
    assert torch.equal(members.inputs[1], whole.inputs)
    assert torch.equal(TaskDataset(TASK, "train", seed=2)[9].inputs, whole.inputs[9])


def test_the_score_is_the_share_recalled():
    batch = TASK.batch("train", seed=0, index=0, batch_size=2)
    logits = torch.zeros(2, 14, 6)
    answers = batch.targets.clamp(min=0)
    logits[:, 6:] = 20 * torch.nn.functional.one_hot(answers, 6)
    objective = TASK.objective
    perfect = objective.finish(objective.sums(logits, batch))
    assert perfect["accuracy"] == 1
    assert perfect["loss"] < 1e-6
    asked = (batch.targets[0] != NOT_ASKED).nonzero()
    logits[0, 6 + asked[1]] = torch.roll(logits[0, 6 + asked[1]], 1, dims=-1)  # one of six wrong
    got = objective.finish(objective.sums(logits, batch))
    assert got["accuracy"] == pytest.approx(5 / 6)
    assert got["loss"] == pytest.approx(20 / 6, abs=1e-4)
    assert objective.loss(logits, batch) == pytest.approx(20 / 6, abs=1e-4)
    # Where nothing is asked, any answer will do.
    free = (batch.targets == NOT_ASKED).unsqueeze(-1)
    other = torch.cat([logits[:, :6], logits[:, 6:].where(~free, 3.0)], dim=1)
    assert objective.loss(other, batch) == objective.loss(logits, batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary": 7}, "vocabulary must be even and at least 4"),
        ({"pairs": 5, "vocabulary": 8}, "pairs must be at most 4, the keys of vocabulary=8"),
        ({"pairs": 8, "length": 23}, "length must be at least 24"),
        ({"pairs": 0}, "pairs must be at least 1"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RecallConfig(**settings)


def test_it_trains_as_populations_and_in_sweeps(tmp_path, capsys):
    smoke = ["--scale", "smoke", "--root", str(tmp_path / "runs")]
    assert main(["train", "recall", *smoke, "--seeds", "2", "--task.pairs", "1"]) == 0
    told = capsys.readouterr().out
    assert "recall, hyla, 30 steps: accuracy" in told
    assert " ID " in told
    assert "OOD" not in told  # nothing is composed
    assert "test accuracy" in told  # how far it is
    [run] = read_runs(tmp_path / "runs")
    assert len(final_rows(run)) == 2
    assert all(0 <= row["test/accuracy"] <= 1 for row in final_rows(run))
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "task: recall\nscale: smoke\nset: {steps: 5}\n"
        "grid: {model.attention: [softmax.rms4, linear], members.seed: [0, 1]}\n"
    )
    folders = ["--root", str(tmp_path / "swept"), "--out", str(tmp_path / "results")]
    assert main(["sweep", str(grid), *folders]) == 0
    assert "OOD" not in capsys.readouterr().out
    assert len(read_runs(tmp_path / "swept")) == 2


@pytest.mark.integration
def test_softmax_attention_learns_it():
    task = Recall(RecallConfig(pairs=2, length=6, vocabulary=8))
    sizes = {"embed_dim": 32, "qk_dim": 32, "v_dim": 32, "mlp_dim": 32, "causal": True}
    population = Population(
        task,
        tiny_model(task, attention="softmax.rms4", **sizes),
        [Member(seed=0, learning_rate=5e-3, warmup_steps=20)],
        total_steps=300,
        batch_size=64,
    )
    population.train(300)
    assert population.evaluate("test", 512)["accuracy"][0] > 0.9


def test_the_question_of_the_lab_is_drawn_and_judged(tmp_path):
    experiment, conditions = load("recall"), Conditions(scale="laptop")
    methods = methods_of(experiment, conditions)
    better = {"softmax": 0.9, "hyla": 0.2}
    rows = [
        {
            "method": method_key(method.config),
            "task_name": "recall",
            "steps": method.config.steps,
            **vars(member),
            "diverged": False,
            "validation/accuracy": 0.5,
            "test/accuracy": better.get(str(method.config.model.attention), 0.5)
            + 0.01 * member.seed,
        }
        for method in methods
        for member in method.config.members
    ]
    tables = Tables(tmp_path, conditions)
    tables.add_measured("models-recall", rows, key=("method", *MEMBER))
    results = results_of(experiment, tables)
    figure = experiment.figure(results)
    assert figure is not None
    panels = [panel for panel in figure.panels[0] if isinstance(panel, Lines)]
    assert [list(panel.x) for panel in panels] == [[2, 4, 8], [24, 48], [1, 2]]
    assert all(len(panel.series) == 6 for panel in panels)
    table = experiment.table(results)
    assert table is not None
    assert len(table.rows) == len(methods)
    claims = {claim.text: claim for claim in experiment.claims(results)}
    assert len(claims) == 3
    [effect] = claims["Softmax attention recalls more than HYLA."].effects
    assert effect.value == pytest.approx(0.7)

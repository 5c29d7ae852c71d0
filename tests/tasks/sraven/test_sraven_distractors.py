"""Distractors: features of random values, mixed with the others, that nothing is scored on."""

import json
import re

import pytest
import torch

from hyla.nn import TransformerConfig
from hyla.tasks import Sraven, SravenConfig
from hyla.tasks.sraven import Solver, ambiguous_by_authors, audit
from hyla.tasks.sraven.faces.prompts import score_answer, to_answer, to_prompt
from hyla.tasks.sraven.faces.rendering import draw_numbers, to_text
from hyla.tasks.sraven.faces.shapes import draw_shapes
from hyla.tasks.sraven.problem import Problems
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.population import Member, Population

CONFIG = SravenConfig(num_features=3, num_distractors=2)
TASK = Sraven(CONFIG)
LABEL = CONFIG.distractor_label


def test_sizes_count_them():
    assert (TASK.num_queries, TASK.sequence_length, TASK.input_dim) == (5, 45, 8)
    batch = TASK.batch("train", seed=0, index=0, batch_size=7)
    assert batch.inputs.shape == (7, 45, 8)
    assert batch.targets.shape == batch.labels.shape == (7, 5)


@pytest.mark.parametrize("split", TASK.splits)
def test_the_other_features_follow_their_rules(split):
    sampler = TASK.sampler(split, seeds=[1], batch_size=200)
    panels, rules, permutations = (field[0] for field in sampler.instances(3))
    assert ((rules == LABEL).sum(-1) == 2).all()
    sides = TASK.manifest(1).sides["ood" if "ood" in split else "train"]
    assert {tuple(sorted(r)[:3]) for r in rules.tolist()} <= set(sides)
    # Put in order and rid of distractors, they are instances of the task without.
    places = permutations.argsort(-1).unsqueeze(1).expand(-1, 3, -1, -1)
    grids = panels.gather(-1, places)
    kept = (rules != LABEL).nonzero()[:, 1].view(-1, 3)
    grids = grids.gather(-1, kept[:, None, None].expand(-1, 3, 3, -1))
    solution = Solver(SravenConfig(num_features=3))(grids, permuted=False)
    truths = grids[:, -1, -1].tolist()
    for index, truth in enumerate(truths):
        assert tuple(truth) in {answer.panel for answer in solution.answers(index)}


def test_they_are_random_and_anywhere():
    sampler = TASK.sampler("test_unpermuted", seeds=[0], batch_size=8000)
    panels, rules, _ = (field[0] for field in sampler.instances(0))
    where = (rules == LABEL).double().mean(0)
    assert torch.allclose(where, torch.full_like(where, 0.4), atol=0.03)
    noise = panels.movedim(-1, 1)[rules == LABEL].flatten(1)  # [distractors, 9]
    counts = torch.stack([(noise == value).double().mean(0) for value in range(8)])
    assert torch.allclose(counts, torch.full_like(counts, 1 / 8), atol=0.015)
    correlation = torch.corrcoef(noise.double().T) - torch.eye(9)
    assert correlation.abs().max() < 0.04


def test_none_of_them_changes_nothing():
    plain = Sraven(SravenConfig()).batch("ood", seed=3, index=5, batch_size=16)
    zero = Sraven(SravenConfig(num_distractors=0)).batch("ood", seed=3, index=5, batch_size=16)
    assert all(torch.equal(a, b) for a, b in zip(plain, zero, strict=True))
    # Pinned: training curves and exports rest on these bits.
    assert plain.targets[:2].tolist() == [[4, 4, 6, 5], [7, 5, 7, 2]]
    tree = config_from_tree(load_preset("sraven", "smoke")).to_tree()
    assert "num_distractors" not in tree["task"]  # earlier runs keep their names
    with_some = merge(load_preset("sraven", "smoke"), {"task": {"num_distractors": 1}})
    assert config_from_tree(with_some).to_tree()["task"]["num_distractors"] == 1
    assert config_from_tree(config_from_tree(with_some).to_tree()).task.num_distractors == 1


# --- loss and metrics -----------------------------------------------------------------------------


def with_other_targets(batch):
    """The batch with other values in the place of the distractors to predict."""
    noise = batch.labels == LABEL
    return batch._replace(targets=torch.where(noise, (batch.targets + 3) % 8, batch.targets))


def test_what_is_predicted_for_them_plays_no_part():
    objective = TASK.objective
    batch = TASK.batch("train", seed=0, index=0, batch_size=64)
    logits = torch.randn(64, 45, 8, requires_grad=True)
    other = with_other_targets(batch)
    assert not torch.equal(batch.targets, other.targets)
    losses = [objective.loss(logits, b) for b in (batch, other)]
    assert torch.equal(*losses)
    [gradient], [same] = (torch.autograd.grad(loss, [logits]) for loss in losses)
    assert torch.equal(gradient, same)
    noise = batch.labels == LABEL
    assert (gradient[:, -5:][noise] == 0).all()
    assert (gradient[:, -5:][~noise] != 0).all()
    sums = [objective.sums(logits, b) for b in (batch, other)]
    assert all(torch.equal(sums[0][name], sums[1][name]) for name in sums[0])


def test_loss_and_metrics_are_those_of_the_other_features():
    objective = TASK.objective
    batch = TASK.batch("train", seed=0, index=0, batch_size=64)
    logits = torch.randn(64, 45, 8)
    best = torch.nn.functional.one_hot(batch.targets, 8) * 9.0
    logits[:48, -5:] = best[:48]  # three quarters are right
    losses, right, features = [], [], []
    for scores, targets, labels in zip(logits[:, -5:], batch.targets, batch.labels, strict=True):
        kept = labels != LABEL
        assert kept.sum() == 3
        losses.append(torch.nn.functional.cross_entropy(scores[kept], targets[kept]))
        hits = scores[kept].argmax(-1) == targets[kept]
        right.append(hits.all().double())
        features.append(hits.double().mean())
    metrics = objective.finish(objective.sums(logits, batch))
    expected = {"loss": losses, "accuracy": right, "feature_accuracy": features}
    for name, values in expected.items():
        assert float(metrics[name]) == pytest.approx(float(torch.stack(values).mean()), rel=1e-5)
    assert float(objective.loss(logits, batch)) == pytest.approx(float(metrics["loss"]), rel=1e-5)
    assert metrics["accuracy"] >= 0.75
    assert not any("distractor" in name for name in metrics)


def test_gradients_of_a_model_in_training_do_not_depend_on_them():
    model = TransformerConfig(
        input_dim=TASK.input_dim,
        output_dim=TASK.output_dim,
        sequence_length=TASK.sequence_length,
        embed_dim=16,
        qk_dim=8,
        v_dim=8,
        mlp_dim=32,
        num_heads=2,
        num_layers=1,
        attention="hyla",
    )
    members = [Member(seed=0), Member(seed=1)]
    population = Population(TASK, model, members, total_steps=10, batch_size=16)
    sample = population._sample
    batch = sample(torch.tensor(0))
    gradients = [
        torch.autograd.grad(population._population_losses(population._views, b, None).sum(), views)
        for b in (batch, with_other_targets(batch))
        for views in [population._views]
    ]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    population.train(2)
    assert population.mean_losses().isfinite().all()
    assert population.evaluate("ood", 32)["accuracy"].shape == (2,)


# --- faces ----------------------------------------------------------------------------------------


def problem(split="test", index=0):
    return Problems(CONFIG, split, seed=0)[index]


def test_a_problem_names_them_and_what_is_scored():
    for index in range(20):
        one = problem(index=index)
        assert one.rules.count("distractor") == 2
        for position, feature in enumerate(one.permutations[-1]):
            assert one.scored[position] == (one.rules[feature] != "distractor")


def test_prompts_say_that_they_are_there_and_replies_need_not_know_them():
    one = problem()
    prompt = to_prompt(one.panels, config=CONFIG)
    assert "The other 2 are distractors" in prompt
    assert "Each of 3 of these features follows one rule" in prompt
    assert "distractor" not in to_prompt(
        Problems(SravenConfig(), "test", seed=0)[0].panels, config=SravenConfig()
    )
    careless = [v if s else (v + 1) % 8 for v, s in zip(one.answer, one.scored, strict=True)]
    assert score_answer(to_answer(careless), one.answer, scored=one.scored) == 1.0
    assert score_answer(to_answer(careless), one.answer) == 0.0
    wrong = list(careless)
    wrong[one.scored.index(True)] += 1
    assert score_answer(to_answer(wrong), one.answer, scored=one.scored) == 0.0
    partial = score_answer(to_answer(wrong), one.answer, scored=one.scored, partial_credit=True)
    assert partial == pytest.approx(2 / 3)


def test_pictures_show_them():
    one = problem()
    assert len(re.findall(r"\d", to_text(one).plain)) == 8 * 5
    assert to_text(one, answer=True).plain.count("distractor") == 2
    assert "distractor" not in to_text(one).plain
    texts = [getattr(item, "text", "") for item in draw_numbers(one, answer=True).items]
    assert texts.count("distractor") == 2
    small = Problems(SravenConfig(num_features=2, num_distractors=2), "test", seed=0)[0]
    texts = [getattr(item, "text", "") for item in draw_shapes(small, answer=True).items]
    assert texts.count("distractor") == 2
    with pytest.raises(ValueError, match="up to 4 features of up to 8 values, got 5 of 8"):
        draw_shapes(one)


def test_exports_hold_them_and_no_labels(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    from hyla.tasks.parquet_folder import export
    from hyla.tasks.sraven.faces.export import SravenExport

    arguments = {"config": CONFIG, "splits": ("ood",), "instances": 30}
    with pytest.raises(ValueError, match="knows neither distractors nor blanks: export without"):
        SravenExport(**arguments)
    [path] = export(tmp_path, SravenExport(**arguments, labels=False))
    rows = parquet.read_table(path).to_pylist()
    for index, row in enumerate(rows):
        one = problem("ood", index)
        assert row["rules"] == list(one.rules)
        assert row["query"] == list(one.answer)
        assert [len(panel) for panel in row["context"]] == [5] * 8
    page = (tmp_path / "README.md").read_text()
    assert "a panel is 5 integers" in page
    assert "Among the features are 2 distractors" in page
    about = json.loads((tmp_path / "export.json").read_text())
    assert about["config"]["num_distractors"] == 2


@pytest.mark.parametrize(
    ("what", "use"),
    [
        ("the solver", lambda: Solver(CONFIG)),
        ("the audit", lambda: audit(CONFIG, 10)),
        (
            "the authors' check",
            lambda: ambiguous_by_authors(torch.zeros(1, 3, 3, 5, dtype=torch.int64), CONFIG),
        ),
        ("unambiguous=True", lambda: SravenConfig(num_distractors=1, unambiguous=True)),
    ],
    ids=["solver", "audit", "authors", "unambiguous"],
)
def test_what_needs_readings_refuses_them_with_a_reason(what, use):
    with pytest.raises(
        ValueError, match=rf"{what} does not work with distractors: a reading.*to 0"
    ):
        use()


def test_less_than_none_is_refused():
    with pytest.raises(ValueError, match="num_distractors must not be negative, got -1"):
        SravenConfig(num_distractors=-1)

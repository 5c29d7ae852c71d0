"""Training on fewer features than evaluation: the others are blank, and nothing is scored there."""

import pytest
import torch

from hyla.tasks import Sraven, SravenConfig
from hyla.tasks.sraven import Solver, audit
from hyla.tasks.sraven.faces.rendering import to_text
from hyla.tasks.sraven.faces.shapes import draw_shapes
from hyla.tasks.sraven.problem import Problems
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.identity import shape_key
from hyla.training.population import Member, Population
from tiny_runs import tiny_model

CONFIG = SravenConfig(num_features=4, train_features=(2, 3))
TASK = Sraven(CONFIG)
LABEL = CONFIG.distractor_label


@pytest.mark.parametrize("split", ["train", "validation", "test", "test_unpermuted"])
def test_training_shows_two_or_three_features_that_follow_their_rules(split):
    sampler = TASK.sampler(split, seeds=[1], batch_size=300)
    panels, rules, permutations = (field[0] for field in sampler.instances(2))
    shown = (rules != LABEL).sum(-1)
    assert set(shown.tolist()) == {2, 3}
    combinations = {tuple(sorted(r for r in row if r != LABEL)) for row in rules.tolist()}
    assert combinations <= set(TASK.manifest(1).sides["train"])
    grids = panels.gather(-1, permutations.argsort(-1).unsqueeze(1).expand(-1, 3, -1, -1))
    blank = (rules == LABEL)[:, None, None].expand_as(grids)
    assert (grids[blank] == -1).all()
    assert (grids[~blank] >= 0).all()
    for number in (2, 3):
        own = shown == number
        kept = (rules[own] != LABEL).nonzero()[:, 1].view(-1, 1, 1, number).expand(-1, 3, 3, -1)
        clear = grids[own].gather(-1, kept)
        solution = Solver(SravenConfig(num_features=number))(clear, permuted=False)
        for index, truth in enumerate(clear[:, -1, -1].tolist()):
            assert tuple(truth) in {answer.panel for answer in solution.answers(index)}


def test_blanks_stand_anywhere():
    rules = TASK.sampler("train", seeds=[0], batch_size=8000).instances(0).rules[0]
    where = (rules == LABEL).double().mean(0)
    assert torch.allclose(where, where.mean().expand(4), atol=0.03)


def test_evaluation_shows_all_features_of_all_combinations():
    sides = TASK.manifest(0).sides
    assert (len(sides["train"]), len(sides["ood"])) == (36 + 120, 330)
    instances = TASK.sampler("ood", seeds=[0], batch_size=500).instances(0)
    assert (instances.panels >= 0).all()
    assert (instances.rules < LABEL).all()
    best = TASK.ceiling("ood", seed=0, instances=100)
    assert best is not None
    assert 0.8 < best.mean() <= 1
    assert TASK.ceiling("test", seed=0, instances=100) is None


def test_blanks_are_zero_tokens_that_play_no_part_in_loss_and_metrics():
    batch = TASK.batch("train", seed=0, index=0, batch_size=64)
    blank = batch.labels == LABEL
    tokens = batch.inputs.view(64, 3, 3, 4, 8)
    shown_above = tokens[:, 0, -1].any(-1)  # of the query's column
    assert (shown_above == ~blank).all()
    assert not tokens[:, -1, -1].any()

    logits = torch.randn(64, 36, 8, generator=torch.Generator().manual_seed(0))
    other = batch._replace(targets=torch.where(blank, 7 - batch.targets, batch.targets))
    objective = TASK.objective
    torch.testing.assert_close(objective.loss(logits, batch), objective.loss(logits, other))
    scores, same = (objective.finish(objective.sums(logits, b)) for b in (batch, other))
    assert all(torch.equal(scores[name], same[name]) for name in scores)
    by_hand = [
        torch.nn.functional.cross_entropy(logits[i, -4:][~blank[i]], batch.targets[i][~blank[i]])
        for i in range(64)
    ]
    torch.testing.assert_close(scores["loss"], torch.stack(by_hand).mean())
    answers = torch.nn.functional.one_hot(batch.targets, 8).float()
    perfect = torch.cat([logits[:, :-4], torch.where(blank.unsqueeze(-1), 0.0, answers)], 1)
    got = objective.finish(objective.sums(perfect, batch))
    assert got["accuracy"] == got["feature_accuracy"] == 1


def test_a_population_trains_on_them():
    population = Population(
        TASK, tiny_model(TASK), [Member(seed=0), Member(seed=1)], total_steps=4, batch_size=8
    )
    population.train(2)
    assert population.mean_losses().isfinite().all()
    assert population.evaluate("ood", 32)["accuracy"].shape == (2,)


def test_a_blank_is_shown_as_a_dot():
    problem = Problems(CONFIG, "train", seed=0)[0]
    assert "blank" in problem.rules
    assert "·" in to_text(problem).plain
    assert problem.scored.count(False) == problem.rules.count("blank")
    with pytest.raises(ValueError, match="shapes have no blanks"):
        draw_shapes(problem)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_features": (4,)}, "between 1 and num_features - 1 = 3, got 4"),
        ({"train_features": (0, 2)}, "got 0"),
        ({"train_features": (2,), "unambiguous": True}, "whether an instance with blanks"),
        ({"train_features": (2,), "num_distractors": 1}, "does not work with distractors"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SravenConfig(**settings)


def test_the_audit_refuses_blanks():
    with pytest.raises(ValueError, match="knows no blanks"):
        audit(CONFIG, 10)


def test_a_split_seed_holds_for_all_members_and_leaves_their_instances_different():
    fixed = Sraven(SravenConfig(split_seed=5))
    assert fixed.manifest(0) == fixed.manifest(1) == Sraven(SravenConfig()).manifest(5)
    panels = fixed.sampler("train", seeds=[0, 5], batch_size=16).instances(0).panels
    assert not torch.equal(panels[0], panels[1])
    own = Sraven(SravenConfig()).sampler("train", seeds=[5], batch_size=16).instances(0).panels
    assert torch.equal(panels[1], own[0])


def test_earlier_runs_keep_their_names():
    tree = load_preset("sraven", "smoke")
    plain = config_from_tree(tree)
    assert not {"split_seed", "train_features"} & plain.to_tree()["task"].keys()
    other = config_from_tree(merge(tree, {"task": {"split_seed": 3}}))
    assert other.to_tree()["task"]["split_seed"] == 3
    assert shape_key(other) == shape_key(plain)

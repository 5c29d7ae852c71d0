"""Losses and metrics against numbers worked out without PyTorch."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from hyla.tasks import Batch, Objective
from hyla.tasks.fuzzy_logic.objective import Regression
from hyla.tasks.sraven.objective import Classification
from hyla.training import Member
from tiny_runs import tiny_population, tiny_task

RULES = ("constant", "progression", "arithmetic")


def regression_batch(instances: int, length: int = 6) -> tuple[Tensor, Batch]:
    targets = torch.rand(instances, length)
    inputs, labels = torch.rand(instances, length, 3), torch.zeros(instances, 2, dtype=torch.int64)
    return torch.randn(instances, length, 1), Batch(inputs, targets, labels)


def classification_batch(instances: int) -> tuple[Tensor, Batch]:
    targets = torch.randint(4, (instances, 2))
    labels = torch.randint(3, (instances, 2))
    return torch.randn(instances, 18, 4), Batch(torch.zeros(instances, 18, 4), targets, labels)


def metrics(objective: Objective, logits: Tensor, batch: Batch) -> dict[str, float]:
    return {k: float(v) for k, v in objective.finish(objective.sums(logits, batch)).items()}


# --- regression ---------------------------------------------------------------------------------


def test_r2_is_the_mean_over_tasks_of_one_minus_error_over_variance():
    logits, batch = regression_batch(7)
    errors, scores = [], []
    for output, target in zip(logits.numpy(), batch.targets.numpy(), strict=True):
        error = (float(output[-1, 0]) - float(target[-1])) ** 2
        errors.append(error)
        scores.append(1 - error / np.var(target.astype(np.float64)))
    got = metrics(Regression(), logits, batch)
    assert got == pytest.approx({"loss": np.mean(errors), "r2": np.mean(scores)}, rel=1e-5)
    assert float(Regression().loss(logits, batch)) == pytest.approx(np.mean(errors), rel=1e-5)


def test_r2_by_hand():
    # Targets 0, 1, 0, 1 have variance 1/4; the query is 1 and 0.5 is predicted: 1 - 0.25/0.25.
    # Targets 0, 0, 0, 4 have variance 3; the query is 4 and 4 is predicted: 1.
    targets = torch.tensor([[0.0, 1, 0, 1], [0, 0, 0, 4]])
    logits = torch.full((2, 4, 1), 99.0)
    logits[:, -1, 0] = torch.tensor([0.5, 4.0])
    batch = Batch(torch.zeros(2, 4, 2), targets, torch.zeros(2, 2, dtype=torch.int64))
    assert metrics(Regression(), logits, batch) == {"loss": 0.125, "r2": 0.5}


# --- classification -----------------------------------------------------------------------------


def test_accuracies_by_hand():
    # Two instances right in both features, one in the first only, one in neither.
    targets = torch.tensor([[0, 1], [2, 3], [1, 1], [3, 0]])
    predictions = torch.tensor([[0, 1], [2, 3], [1, 2], [0, 3]])
    labels = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    logits = torch.full((4, 18, 4), 50.0)  # earlier positions have no say
    logits[:, -2:] = torch.nn.functional.one_hot(predictions, 4) * 30.0
    batch = Batch(torch.zeros(4, 18, 4), targets, labels)
    got = metrics(Classification(2, RULES), logits, batch)
    assert math.isnan(got.pop("accuracy/arithmetic"))  # no feature followed it
    assert got == pytest.approx(
        {
            "loss": 3 * 30 / 8,
            "accuracy": 2 / 4,
            "feature_accuracy": 5 / 8,
            "accuracy/constant": 3 / 4,  # features 00, 01 and 10 of four
            "accuracy/progression": 2 / 4,  # 11 and 20
        },
        abs=1e-6,
    )


def test_classification_against_a_plain_loop():
    logits, batch = classification_batch(30)
    losses, all_right, right = [], [], []
    by_rule: dict[int, list[bool]] = {0: [], 1: [], 2: []}
    for output, targets, labels in zip(
        logits.double().numpy(), batch.targets.tolist(), batch.labels.tolist(), strict=True
    ):
        features = []
        for feature in range(2):
            scores = output[16 + feature]
            losses.append(np.log(np.exp(scores).sum()) - scores[targets[feature]])
            features.append(bool(scores.argmax() == targets[feature]))
            by_rule[labels[feature]].append(features[-1])
        all_right.append(all(features))
        right += features
    want = {
        "loss": np.mean(losses),
        "accuracy": np.mean(all_right),
        "feature_accuracy": np.mean(right),
    } | {f"accuracy/{RULES[rule]}": np.mean(hits) for rule, hits in by_rule.items()}
    assert metrics(Classification(2, RULES), logits, batch) == pytest.approx(want, rel=1e-5)
    loss = float(Classification(2, RULES).loss(logits, batch))
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)


# --- both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "make"),
    [
        pytest.param(Regression(), regression_batch, id="regression"),
        pytest.param(Classification(2, RULES), classification_batch, id="classification"),
    ],
)
def test_sums_over_unequal_batches_are_those_of_one(objective, make):
    logits, batch = make(20)
    whole = metrics(objective, logits, batch)
    totals: dict[str, Tensor] = {}
    for part in (slice(0, 3), slice(3, 17), slice(17, 20)):
        sums = objective.sums(logits[part], Batch(*(field[part] for field in batch)))
        totals = {name: totals.get(name, 0) + value for name, value in sums.items()}
    got = {name: float(value) for name, value in objective.finish(totals).items()}
    assert got == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("make", [regression_batch, classification_batch])
def test_bf16_logits_are_scored_in_float32(make):
    logits, batch = make(8)
    objective = Regression() if make is regression_batch else Classification(2, RULES)
    logits = logits.bfloat16()
    assert objective.loss(logits, batch).dtype == torch.float32
    assert metrics(objective, logits, batch) == metrics(objective, logits.float(), batch)


def test_each_task_gets_its_objective():
    assert isinstance(tiny_task("fuzzy").objective, Regression)
    sraven = tiny_task("sraven").objective
    assert isinstance(sraven, Classification)
    assert (sraven.num_queries, len(sraven.rule_names)) == (2, 8)


def test_a_population_optimises_the_objective_it_is_given():
    class Doubled(Regression):
        def loss(self, logits: Tensor, batch: Batch) -> Tensor:
            return 2 * super().loss(logits, batch)

    losses = []
    for objective in (None, Doubled()):
        population = tiny_population("fuzzy", [Member()], objective=objective)
        population.train(1)
        losses.append(population.mean_losses())
    torch.testing.assert_close(2 * losses[0], losses[1])

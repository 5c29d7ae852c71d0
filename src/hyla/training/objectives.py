"""What a task optimises and how it is scored.

An objective sees the logits of one model on one batch. Metrics come as sums over the batch and
are divided by the number of instances at the end, so that any evaluation size aggregates exactly.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.tasks import Batch, FuzzyLogic, Sraven, Task


class Objective(Protocol):
    """Loss and metrics of a task."""

    headline: str
    """The metric by which members are compared."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean loss over the batch."""
        ...

    def sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Sums over the batch; `finish` turns totals of them into metrics."""
        ...

    def finish(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Metrics from the sums over all evaluated instances."""
        ...


class Regression:
    """Fuzzy logic: squared error of the query token, R² against each task's own variance."""

    headline = "r2"

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean squared error of the query."""
        return self._squared_error(logits, batch).mean()

    def sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Squared errors, and R² = 1 - error² / variance of the task's targets, task by task."""
        error = self._squared_error(logits, batch)
        variance = batch.targets.var(dim=-1, correction=0)
        return {
            "instances": error.new_full((), error.shape[0]),
            "loss": error.sum(),
            "r2": (1 - error / variance).sum(),
        }

    def finish(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Means over the instances."""
        return {name: sums[name] / sums["instances"] for name in ("loss", "r2")}

    @staticmethod
    def _squared_error(logits: Tensor, batch: Batch) -> Tensor:
        return (logits[:, -1, 0].float() - batch.targets[:, -1]).square()


class Classification:
    """SRAVEN: cross-entropy of the query tokens; right means that all features are right.

    Distractors, which no rule determines, play no part in the loss nor in any metric. Their labels
    are the number after the last rule's.
    """

    headline = "accuracy"

    def __init__(self, num_queries: int, rule_names: tuple[str, ...], *, num_distractors: int = 0):
        self.num_queries = num_queries
        self.rule_names = rule_names
        self.num_distractors = num_distractors
        self._queries_per_scored = num_queries / (num_queries - num_distractors)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy over instances and features."""
        return self._cross_entropy(logits, batch).mean() * self._queries_per_scored

    def sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Counts of right instances, right features, and right features by rule."""
        scored = self._scored(batch)
        right = scored & (self._queries(logits).argmax(-1) == batch.targets)
        rules = F.one_hot(batch.labels, len(self.rule_names) + 1)[..., :-1]
        return {
            "instances": logits.new_full((), len(right), dtype=torch.float32),
            "loss": self._cross_entropy(logits, batch).mean(-1).sum() * self._queries_per_scored,
            "accuracy": (right == scored).all(-1).float().sum(),
            "feature_accuracy": right.float().mean(-1).sum() * self._queries_per_scored,
            "rule_right": (rules * right.unsqueeze(-1)).float().sum((0, 1)),
            "rule_count": rules.float().sum((0, 1)),
        }

    def finish(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Means over the instances, and over the features that follow each rule."""
        names = ("loss", "accuracy", "feature_accuracy")
        metrics = {name: sums[name] / sums["instances"] for name in names}
        by_rule = (sums["rule_right"] / sums["rule_count"]).unbind(-1)
        return metrics | {
            f"accuracy/{rule}": value for rule, value in zip(self.rule_names, by_rule, strict=True)
        }

    def _queries(self, logits: Tensor) -> Tensor:
        return logits[:, -self.num_queries :].float()

    def _scored(self, batch: Batch) -> Tensor:
        """Which queries count: those that are no distractors."""
        if not self.num_distractors:
            return torch.ones_like(batch.labels, dtype=torch.bool)
        return batch.labels < len(self.rule_names)

    def _cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of each query, 0 for distractors."""
        logits = self._queries(logits)
        losses = F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="none"
        ).view(batch.targets.shape)
        return losses.where(self._scored(batch), 0.0)


def objective_of(task: Task) -> Objective:
    """Return the paper's objective for the task."""
    if isinstance(task, FuzzyLogic):
        return Regression()
    if isinstance(task, Sraven):
        return Classification(
            task.num_queries, task.config.rules, num_distractors=task.config.num_distractors
        )
    raise ValueError(
        f"no objective is known for {type(task).__name__}; pass Population(objective=...)"
    )

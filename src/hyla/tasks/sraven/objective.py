"""How SRAVEN is scored."""

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.tasks.base import Batch


class Classification:
    """SRAVEN: cross-entropy of the query tokens; right means that all features are right.

    Distractors and blanks, which no rule determines, play no part in the loss nor in any metric.
    Their labels are the number after the last rule's; `all_scored` says that there are none.
    """

    headline = "accuracy"

    def __init__(self, num_queries: int, rule_names: tuple[str, ...], *, all_scored: bool = True):
        self.num_queries = num_queries
        self.rule_names = rule_names
        self.all_scored = all_scored

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy over instances and features."""
        losses = self._cross_entropy(logits, batch)
        return losses.mean() if self.all_scored else self._over_scored(losses, batch).mean()

    def sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Counts of right instances, right features, and right features by rule."""
        scored = self._scored(batch)
        right = scored & (self._queries(logits).argmax(-1) == batch.targets)
        rules = F.one_hot(batch.labels, len(self.rule_names) + 1)[..., :-1]
        return {
            "instances": logits.new_full((), len(right), dtype=torch.float32),
            "loss": self._over_scored(self._cross_entropy(logits, batch), batch).sum(),
            "accuracy": (right == scored).all(-1).float().sum(),
            "feature_accuracy": self._over_scored(right.float(), batch).sum(),
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
        """Which queries count: those that a rule determines."""
        if self.all_scored:
            return torch.ones_like(batch.labels, dtype=torch.bool)
        return batch.labels < len(self.rule_names)

    def _over_scored(self, values: Tensor, batch: Batch) -> Tensor:
        """The mean of each instance over the queries that count; others hold 0."""
        return values.sum(-1) / self._scored(batch).sum(-1)

    def _cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of each query, 0 for those that do not count."""
        logits = self._queries(logits)
        losses = F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="none"
        ).view(batch.targets.shape)
        return losses.where(self._scored(batch), 0.0)

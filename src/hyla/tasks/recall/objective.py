"""How associative recall is scored."""

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.tasks.base import Batch

NOT_ASKED = -1
"""The target of a position at which nothing is asked."""


class Recalled:
    """Cross-entropy of the values asked for; the score is the share that is recalled."""

    headline = "accuracy"

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy over instances and what they ask for."""
        return self._loss_of_each(logits, batch).mean()

    def sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Sums over the instances of their losses and of the shares that are right."""
        right = self._answers(logits, batch).argmax(-1) == batch.targets
        return {
            "instances": logits.new_full((), len(right), dtype=torch.float32),
            "loss": self._loss_of_each(logits, batch).sum(),
            "accuracy": (right.float().sum(-1) / self._asked(batch).sum(-1)).sum(),
        }

    def finish(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Means over the instances."""
        return {name: sums[name] / sums["instances"] for name in ("loss", "accuracy")}

    def _loss_of_each(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of each instance: the mean over what it asks for."""
        asked = self._asked(batch)
        answers = self._answers(logits, batch).flatten(0, 1)
        targets = batch.targets.clamp(min=0).flatten()
        losses = F.cross_entropy(answers, targets, reduction="none").view(asked.shape)
        return losses.where(asked, 0.0).sum(-1) / asked.sum(-1)

    @staticmethod
    def _answers(logits: Tensor, batch: Batch) -> Tensor:
        return logits[:, -batch.targets.shape[-1] :].float()

    @staticmethod
    def _asked(batch: Batch) -> Tensor:
        return batch.targets != NOT_ASKED

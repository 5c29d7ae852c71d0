"""The study of SRAVEN: which rule gives the last feature of the query panel."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hyla.tasks.base import Batch
from hyla.tasks.sraven.rules import RULES, Context
from hyla.tasks.sraven.task import Sraven
from hyla.tasks.study import Specimens, Study, as_numpy


class SravenStudy(Study):
    """The last feature of the query panel, in instances whose columns are not permuted.

    As in the authors' analysis, the codes are those of the last token attending to the same feature
    of the two earlier panels of its row (`row`); the paper's text speaks of the token attending to
    itself (`self`).
    """

    known, unseen = "test_unpermuted", "ood_unpermuted"
    operation = "rule"
    decoding_metric = "accuracy"

    def __init__(self, task: Sraven):
        self.task = task
        panel, grid = task.num_queries, task.config.grid_size
        self.pairs = {
            "row": [(-1, -1 - panel * back) for back in range(grid - 1, 0, -1)],
            "self": [(-1, -1)],
            "all keys": [(-1, key) for key in range(task.sequence_length)],
        }
        self.operations = task.config.rules
        self.classes = {"rule": task.config.rules}

    def sample(
        self,
        split: str,
        *,
        seed: int,
        instances: int,
        index: int = 0,
        device: torch.device | str = "cpu",
    ) -> Specimens:
        """Instances in which the last feature follows a rule (it may be a distractor)."""
        batch = self.task.batch(split, seed=seed, index=index, batch_size=instances, device=device)
        batch = Batch(*(x[batch.labels[:, -1] < len(self.operations)] for x in batch))
        rules, answers = batch.labels[:, -1], batch.targets[:, -1]
        targets = F.one_hot(answers, self.task.config.num_values)
        return Specimens(
            inputs=batch.inputs,
            operations=rules,
            answers=answers.float(),
            labels={
                "rule": np.array(self.operations)[as_numpy(rules)],
                "target": as_numpy(answers),
            },
            decodable={"rule": as_numpy(rules)},
            predictors={"inputs": as_numpy(batch.inputs.flatten(1)), "target": as_numpy(targets)},
            operands=self._operands(batch.inputs),
        )

    def prescribed(
        self, recipients: Specimens, operations: Int64[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """What each rule makes of the last row; a rule about other rows must fit them, too."""
        K = self.task.config.num_values
        *columns, last = self._columns(recipients.inputs)
        context = Context((*columns, last[:-1]), K)
        values = torch.full_like(recipients.answers, torch.nan)
        for number, name in enumerate(self.operations):
            fits, value = RULES[name].inverse(context)
            defined = fits if RULES[name].across_rows else torch.ones_like(fits)
            chosen = (operations == number) & defined
            values = torch.where(chosen, value.remainder(K).to(values.dtype), values)
        return values

    def predictions(self, logits: Float[Tensor, "N T K"]) -> Float[Tensor, " N"]:
        """The most probable value of the last token."""
        return logits[:, -1].argmax(dim=-1).float()

    def agree(
        self, predictions: Float[Tensor, "*#any"], values: Float[Tensor, "*#any"]
    ) -> Bool[Tensor, "*any"]:
        """Equality."""
        return predictions == values

    def _columns(self, inputs: Float[Tensor, "N T K"]) -> Int64[Tensor, "columns rows N"]:
        """The grid of the last feature; its last entry, which is asked for, means nothing."""
        grid = self.task.config.grid_size
        return inputs.argmax(dim=-1).unflatten(1, (grid, grid, -1))[..., -1].permute(2, 1, 0)

    def _operands(self, inputs: Float[Tensor, "N T K"]) -> Int64[Tensor, " N"]:
        """The values of the last row that are shown, as the digits of a number."""
        number = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
        for column in self._columns(inputs)[:-1]:
            number = number * self.task.config.num_values + column[-1]
        return number

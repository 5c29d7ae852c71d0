"""How good answers to a variant's instances are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int64
from torch import Tensor

from hyla.latents.measures.confidence import Interval, wilson_interval
from hyla.tasks.sraven.generator import as_batch
from hyla.tasks.sraven.solver.ambiguity import ambiguous_by_definition
from hyla.tasks.sraven.solver.exact import Solver
from hyla.tasks.sraven.variants import SPLIT, Variant


@dataclass(frozen=True, kw_only=True)
class Part:
    """Accuracy on some of the instances, with its 95 % interval (Wilson's)."""

    instances: int
    right: int

    @property
    def accuracy(self) -> Interval:
        """The share that is right."""
        return wilson_interval(self.right, self.instances)


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a set of answers reaches; an answer is right if all that is scored of it is."""

    whole: Part
    unambiguous: Part | None
    """On instances with one answer; None where the solver cannot tell."""
    ambiguous: Part | None
    """On the others: no model can be right on all of them."""
    by_rule: dict[str, float]
    """The share of right integers, by the rule that they follow."""
    ceiling: float | None
    """The best accuracy to expect on these instances."""

    @property
    def share_of_ceiling(self) -> float | None:
        """The accuracy as a share of the best to expect; None where that is not known."""
        return None if self.ceiling is None else self.whole.accuracy.value / self.ceiling

    @property
    def is_above_ceiling(self) -> bool:
        """Whether chance does not explain that it is better than the best to expect."""
        return self.ceiling is not None and self.whole.accuracy.low > self.ceiling


def score(variant: Variant, predictions: Int64[Tensor, "n m"]) -> Score:
    """Score answers to the evaluation instances, in their order."""
    config = variant.config
    instances = variant.evaluation()
    batch = as_batch(instances, num_values=config.num_values)
    right = ((predictions == batch.targets) | (batch.labels == config.distractor_label)).all(-1)
    # The metrics of training, for answers that are quite sure of themselves.
    objective = variant.task.objective
    metrics = objective.finish(
        objective.sums(F.one_hot(predictions, config.num_values).float(), batch)
    )
    by_rule = {rule: float(metrics[f"accuracy/{rule}"]) for rule in config.rules}
    unambiguous = ambiguous = None
    if variant.task.is_readable(SPLIT):
        several = ambiguous_by_definition(Solver(config)(instances.panels))
        unambiguous, ambiguous = _part(right, ~several), _part(right, several)
    return Score(
        whole=_part(right, torch.ones_like(right)),
        unambiguous=unambiguous,
        ambiguous=ambiguous,
        by_rule={rule: round(value, 6) for rule, value in by_rule.items() if math.isfinite(value)},
        ceiling=variant.published["ceiling"],
    )


def _part(right: Bool[Tensor, " n"], chosen: Bool[Tensor, " n"]) -> Part:
    return Part(instances=int(chosen.sum()), right=int((right & chosen).sum()))

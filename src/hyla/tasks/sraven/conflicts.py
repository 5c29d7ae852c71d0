"""Whether an instance has a reading that its true answer contradicts: the solver's little sister.

It neither lists answers nor weighs them, but knows the truth. All its shapes are fixed, so that a
sampler that rejects ambiguous instances can be compiled and captured.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.matching import BestMatching
from hyla.tasks.sraven.rules import any_of
from hyla.tasks.sraven.threads import narrowed, prescriptions, thread_context

_WORKING_SET = {"cpu": 2**21, "cuda": 2**26}  # threads × instances looked at together

_AGREES, _CONFLICTS = 1, 2  # the scores of threads; a product above one has a conflict in it


class Conflicts:
    """Finds instances that are ambiguous by the paper's definition, given the whole grid."""

    def __init__(
        self, config: SravenConfig, *, permuted: bool, device: torch.device | str = "cpu"
    ) -> None:
        self._config = config
        self._permuted = permuted
        self._matching = BestMatching(
            num_features=config.num_features,
            num_columns=config.grid_size if permuted else 1,
            device=device,
        )

    def __call__(self, grids: Int[Tensor, "columns rows m n"]) -> Bool[Tensor, "n"]:
        """Whether each instance has a reading that prescribes another query panel than it shows."""
        working_set = _WORKING_SET["cuda" if grids.is_cuda else "cpu"]
        parts = grids.split(self._matching.instances_together(working_set), dim=-1)
        return torch.cat([self._judge(part) for part in parts])

    def _judge(self, grids: Int[Tensor, "columns rows m n"]) -> Bool[Tensor, "n"]:
        grids = narrowed(grids, num_values=self._config.num_values)
        context = thread_context(grids, num_values=self._config.num_values, permuted=self._permuted)
        truth = grids[-1, -1]  # its positions are those of the last column, hence the last axis
        found = prescriptions(context, self._config.rules)
        fits = any_of(one.fits for one in found)
        conflicts = any_of(one.fits & (one.value != truth) for one in found)
        scores = torch.where(conflicts, _CONFLICTS, fits.to(self._matching.dtype) * _AGREES)
        return self._matching(scores) > _AGREES

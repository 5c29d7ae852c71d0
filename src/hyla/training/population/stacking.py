"""Models of one shape as one matrix [P, N]: a row holds all parameters of a member."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hyla.nn import Transformer, TransformerConfig
from hyla.tasks.randomness import RandomStream, counters, random_words, to_uniform


def stacked_parameters(
    config: TransformerConfig, seeds: Sequence[int], device: torch.device
) -> tuple[Transformer, Float[Tensor, "P N"]]:
    """Return a model to call functionally and the initial parameters of a member per seed.

    Drawn on the CPU with a generator of the member's own, so that a member starts from the same
    numbers on any device and in any company.
    """
    model = Transformer(config)
    rows = []
    for seed in seeds:
        model.reset_parameters(torch.Generator().manual_seed(seed))
        rows.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return model.to(device), torch.stack(rows).to(device)


def parameter_views(matrix: Float[Tensor, "P N"], model: Transformer) -> list[Tensor]:
    """Return leaves [P, ...] that share the matrix's memory, one per parameter of `model`."""
    views, start = [], 0
    for parameter in model.parameters():
        block = matrix.detach()[:, start : start + parameter.numel()]
        views.append(block.view(len(matrix), *parameter.shape).requires_grad_())
        start += parameter.numel()
    return views


class DropoutNoise:
    """The uniform numbers of attention dropout, as a function of (seed, step)."""

    def __init__(self, config: TransformerConfig, seeds: Sequence[int], device: torch.device):
        self._shape = (config.num_layers, config.sequence_length, config.sequence_length)
        self._stream = RandomStream(seeds=seeds, name="attention dropout", device=device)
        self._counters = counters(0, torch.Size(self._shape).numel(), device=device)

    def __call__(self, step: Int64[Tensor, ""]) -> Float[Tensor, "P L T T"]:
        """Return the noise of every member, layer and query-key pair at this step."""
        keys = self._stream.keys(step.view(1))  # [P, 1]
        return to_uniform(random_words(keys, self._counters)).unflatten(-1, self._shape)

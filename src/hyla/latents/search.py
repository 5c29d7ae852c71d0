"""Search on the code at test time: change it until the model explains examples with known answers.

    for change in searched(model, examples, steps=8):
        with edited(model, change.edits()):
            logits = model(inputs)

The model's weights stay as they are. What is changed is the code: every instance has a vector of
its own for each layer, a number for each head, which is added to the codes of all pairs.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from hyla.latents.intervene import edited
from hyla.latents.observe import CodeEdit
from hyla.nn import MultiHeadAttention

LEARNING_RATE = 0.01
"""Of Adam; chosen on instances of trained combinations (LOG.md)."""


class Example(NamedTuple):
    """What each instance knows the answer to: its inputs, and the targets of its last tokens."""

    inputs: Float[Tensor, "B T V"]
    targets: Int64[Tensor, "B M"]


class CodeChange(NamedTuple):
    """What is added to the codes of each layer, and what the examples cost with it."""

    layers: list[Float[Tensor, "B H 1 1"]]
    losses: Float[Tensor, " B"]
    """Mean cross-entropy of each instance's examples."""

    def edits(self) -> dict[int, CodeEdit]:
        """The change in the form that `edited` takes."""
        return _edits(self.layers)


def searched(
    model: nn.Module,
    examples: Sequence[Example],
    *,
    steps: int,
    learning_rate: float = LEARNING_RATE,
) -> Iterator[CodeChange]:
    """Yield the change of the code after 0, 1, ..., `steps` steps of Adam on the examples' loss.

    Instances do not see each other: each is changed as it would be alone.
    """
    inputs = examples[0].inputs
    layers = [
        torch.zeros(len(inputs), layer.num_heads, 1, 1, device=inputs.device, requires_grad=True)
        for layer in model.modules()
        if isinstance(layer, MultiHeadAttention)
    ]
    optimizer = torch.optim.Adam(layers, lr=learning_rate)
    for step in range(steps + 1):
        with torch.enable_grad(), edited(model, _edits(layers)):
            losses = torch.stack([_losses(model, example) for example in examples]).mean(0)
            if step < steps:
                gradients = torch.autograd.grad(losses.sum(), layers)
        yield CodeChange([layer.detach().clone() for layer in layers], losses.detach())
        if step < steps:
            for layer, gradient in zip(layers, gradients, strict=True):
                layer.grad = gradient
            optimizer.step()


def _losses(model: nn.Module, example: Example) -> Float[Tensor, " B"]:
    logits = model(example.inputs)[:, -example.targets.shape[1] :]
    return F.cross_entropy(logits.transpose(1, 2), example.targets, reduction="none").mean(-1)


def _edits(layers: Sequence[Tensor]) -> dict[int, CodeEdit]:
    return {number: partial(torch.add, added) for number, added in enumerate(layers)}

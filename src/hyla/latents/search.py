"""Search on the code at test time: change it until the model explains examples with known answers.

    for change in searched(model, examples, steps=8):
        with edited(model, change.edits()):
            logits = model(inputs)

The model's weights stay as they are. What is changed is the code: every instance has a vector of
its own for each layer, a number for each head, which is added to the codes of all pairs; or one for
each pair.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from hyla.latents.intervene import edited
from hyla.latents.observe import CodeEdit
from hyla.nn import MultiHeadAttention

LEARNING_RATE = 0.003
"""Of Adam; for HYLA, chosen on trained combinations. Softmax attention needs a tenth of it."""


class Example(NamedTuple):
    """What each instance knows the answer to: its inputs, and the targets of its last tokens."""

    inputs: Float[Tensor, "B T V"]
    targets: Int64[Tensor, "B M"]


class CodeChange(NamedTuple):
    """What is added to the codes of each layer, and how well the examples are explained with it."""

    layers: list[Float[Tensor, "B H #Tq #Tk"]]
    losses: Float[Tensor, " B"]
    """Mean cross-entropy of each instance's examples."""
    explained: Bool[Tensor, " B"]
    """Whether all targets of an instance's examples are the most probable."""

    def edits(self) -> dict[int, CodeEdit]:
        """The change in the form that `edited` takes."""
        return _edits(self.layers)


def searched(
    model: nn.Module,
    examples: Sequence[Example],
    *,
    steps: int,
    learning_rate: float = LEARNING_RATE,
    per_pair: bool = False,
) -> Iterator[CodeChange]:
    """Yield the change of the code after 0, 1, ..., `steps` steps of Adam on the examples' loss.

    Instances do not see each other: each is changed as it would be alone, and no more as soon as
    its examples are explained. With `per_pair` every query-key pair has a change of its own.
    """
    batch, tokens, _ = examples[0].inputs.shape
    pairs = (tokens, tokens) if per_pair else (1, 1)
    layers = [
        torch.zeros(batch, layer.num_heads, *pairs, device=examples[0].inputs.device)
        for layer in model.modules()
        if isinstance(layer, MultiHeadAttention)
    ]
    optimizer = torch.optim.Adam(layers, lr=learning_rate)
    for step in range(steps + 1):
        change, gradients = _examined(model, examples, layers)
        yield change
        if step < steps:
            for layer, gradient in zip(layers, gradients, strict=True):
                layer.grad = gradient
            optimizer.step()
            done = change.explained[:, None, None, None]
            for layer, before in zip(layers, change.layers, strict=True):
                layer.copy_(torch.where(done, before, layer))


def _examined(
    model: nn.Module, examples: Sequence[Example], layers: Sequence[Tensor]
) -> tuple[CodeChange, tuple[Tensor, ...]]:
    """The change as it is, and the gradients of the examples' loss with respect to it."""
    variables = [layer.clone().requires_grad_() for layer in layers]
    losses, right = [], []
    with torch.enable_grad(), edited(model, _edits(variables)):
        for inputs, targets in examples:
            logits = model(inputs)[:, -targets.shape[1] :].transpose(1, 2)
            losses.append(F.cross_entropy(logits, targets, reduction="none").mean(-1))
            right.append((logits.argmax(1) == targets).all(-1))
        loss = torch.stack(losses).mean(0)
        gradients = torch.autograd.grad(loss.sum(), variables)
    added = [variable.detach() for variable in variables]
    return CodeChange(added, loss.detach(), torch.stack(right).all(0)), gradients


def _edits(layers: Sequence[Tensor]) -> dict[int, CodeEdit]:
    return {number: partial(torch.add, added) for number, added in enumerate(layers)}

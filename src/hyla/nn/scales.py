"""How large the branches of a transformer are beside the residual stream that they join.

A branch far larger than its stream drowns it: what the embedding, or an earlier block, has put
there reaches the rest of the model as rounding. Layer norms hide that from the outputs, so it has
to be looked for.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hyla._hooks import hooks_removed
from hyla.nn.transformer import Block, Transformer

MOST_TIMES_THE_STREAM = 3.0
"""Above this, a branch drowns the stream, unless the stream is small itself (`drowns`)."""


@dataclass(frozen=True, kw_only=True)
class BranchScales:
    """Standard deviations in one block, each over the batch, all positions and all channels."""

    stream: float
    """Of the stream that enters the block and that attention is added to."""
    attention: float
    """Of the attention branch."""
    between: float
    """Of the stream with attention, which the feed-forward branch is added to."""
    feed_forward: float
    """Of the feed-forward branch."""

    @property
    def attention_ratio(self) -> float:
        """How many times the stream the attention branch is."""
        return _times(self.attention, self.stream)

    @property
    def feed_forward_ratio(self) -> float:
        """How many times the stream the feed-forward branch is."""
        return _times(self.feed_forward, self.between)


@torch.no_grad()
def branch_scales(
    model: nn.Module, batch: Tensor, *, mask: Tensor | None = None
) -> list[BranchScales]:
    """Return the scales in each block of a `Transformer`, or of a model that has its blocks inside.

    `batch` and `mask` are what the model takes. One forward pass, in the mode that the model is in.
    """
    if not any(isinstance(module, Block) for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} holds no block of hyla.nn.Transformer; there is no stream "
            "to measure"
        )
    # The logits of a language model are larger than all the rest, and not looked at.
    forward = model.features if isinstance(model, Transformer) else model
    options: dict[str, Any] = {} if mask is None else {"mask": mask}
    with recorded_scales(model) as recorded:
        forward(batch, **options)
    return scales_by_block(by_block(recorded))


@contextmanager
def recorded_scales(model: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that every block run inside appends to: tensors, for `by_block`.

    Under `vmap` they belong to one member, and have to be stacked inside.
    """
    recorded: list[Tensor] = []

    def note(tensor: Tensor) -> None:
        recorded.append(tensor.float().std(correction=0))

    def note_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        note(inputs[0])

    def note_output(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        note(output if isinstance(output, Tensor) else output[0])  # a code comes second

    # In the order in which a block calls them, which is that of the fields of `BranchScales`.
    hooks = [
        hook
        for block in model.modules()
        if isinstance(block, Block)
        for hook in (
            block.register_forward_pre_hook(note_input),
            block.attention.register_forward_hook(note_output),
            block.feed_forward_norm.register_forward_pre_hook(note_input),
            block.feed_forward.register_forward_hook(note_output),
        )
    ]
    with hooks_removed(hooks):
        yield recorded


def by_block(recorded: Sequence[Tensor]) -> Tensor:
    """Return what `recorded_scales` noted as [blocks, 4]."""
    return torch.stack(list(recorded)).view(-1, 4)


def scales_by_block(measured: Tensor) -> list[BranchScales]:
    """Return the rows of `by_block` with names."""
    return [
        BranchScales(stream=stream, attention=attention, between=between, feed_forward=feed_forward)
        for stream, attention, between, feed_forward in measured.tolist()
    ]


def drowns(branch: float, stream: float) -> bool:
    """Whether a branch is too large for the stream that it joins: not one that joins a small one.

    A layer norm hands 1 to a branch. Where one is not many times larger than that either, it is the
    stream that is small, as token embeddings are at the start, whatever the attention.
    """
    large = not branch <= MOST_TIMES_THE_STREAM  # so NaN is large
    return large and _times(branch, stream) > MOST_TIMES_THE_STREAM


def _times(branch: float, stream: float) -> float:
    """Divide; what overflowed, or joins no stream at all, is infinitely many times as large."""
    times = branch / stream if stream else math.inf
    return math.inf if math.isnan(times) else times

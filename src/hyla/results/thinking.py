"""Thinking longer at test time on SRAVEN: search on the code, beside answering the puzzle again.

Both may take the same number of passes through the model. The search holds out each known row in
turn, changes the code until the model explains it, and answers the real question with that code.
The other way shows the model the same puzzle in other words, and adds up what it says.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hyla._errors import check_positive
from hyla.latents.intervene import edited
from hyla.latents.measures.confidence import Interval, wilson_interval
from hyla.latents.search import LEARNING_RATE, CodeChange, Example, searched
from hyla.nn import Transformer
from hyla.tasks.sraven.equivalents import about_row, shuffled
from hyla.tasks.sraven.generator import encode
from hyla.tasks.sraven.variants import SEED, Variant

_BATCH = 256  # gradients of more would take gigabytes


@dataclass(frozen=True, kw_only=True)
class Thought:
    """What a model answers after thinking for so long."""

    way: str
    """search, or again: the puzzle in other words."""
    steps: int
    """Of the search, or of the one that takes as many passes."""
    passes: int
    """Through the model, forward or backward."""
    right: Bool[Tensor, " n"]
    """Whether the answer to each instance is right."""
    row_losses: Float[Tensor, " n"] | None = None
    """Mean cross-entropy of the rows that were held out, in nats; None without search."""
    explained: Bool[Tensor, " n"] | None = None
    """Whether the model answers all of these rows; None without search."""

    @property
    def accuracy(self) -> Interval:
        """The share that is right, with its 95 % interval (Wilson's)."""
        return wilson_interval(int(self.right.sum()), len(self.right))

    def changed(self, plain: "Thought") -> tuple[int, int]:
        """How many instances are right now and were not, and the other way round."""
        gained, lost = self.right & ~plain.right, plain.right & ~self.right
        return int(gained.sum()), int(lost.sum())


def thinking_curve(
    variant: Variant,
    model: Transformer,
    *,
    split: str,
    instances: int,
    steps: Sequence[int],
    learning_rate: float = LEARNING_RATE,
    per_pair: bool = False,
) -> list[Thought]:
    """Measure both ways on the first instances of a split, after each of these numbers of steps."""
    check_thinking(
        variant, split=split, instances=instances, steps=steps, learning_rate=learning_rate
    )
    task = variant.task
    device = next(model.parameters()).device
    sampler = task.sampler(split, seeds=[SEED], batch_size=instances, device=device)
    reader = _Reader(model, task.config.num_values)
    search = partial(searched, learning_rate=learning_rate, per_pair=per_pair)
    parts = [
        [
            *_searching(reader, panels, set(steps), search),
            # Drawn for each batch by itself: what it is asked has nothing to do with the steps
            # that others took.
            *_asking_again(reader, panels, set(steps), torch.Generator().manual_seed(number)),
        ]
        for number, panels in enumerate(sampler.instances(0).panels[0].split(_BATCH))
    ]
    return [_joined(same) for same in zip(*parts, strict=True)]


def check_thinking(
    variant: Variant, *, split: str, instances: int, steps: Sequence[int], learning_rate: float
) -> None:
    """Raise a ValueError for what `thinking_curve` cannot measure."""
    check_positive(instances=instances)
    if not variant.task.is_readable(split):
        raise ValueError(f"variant {variant.name} shows in {split} what follows no rule")
    if not steps or min(steps) < 0:
        raise ValueError(f"steps must be numbers from 0, got {list(steps)}")
    if not learning_rate > 0:  # also NaN
        raise ValueError(f"learning_rate must be more than 0, got {learning_rate:g}")


def rows_of(curve: Sequence[Thought]) -> list[dict[str, Any]]:
    """Return a curve as plain values, each thought beside the first."""
    rows = []
    for thought in curve:
        gained, lost = thought.changed(curve[0])
        _, *interval = (round(number, 6) for number in thought.accuracy)
        rows.append(
            {
                "method": thought.way,
                "steps": thought.steps,
                "passes": thought.passes,
                "right": int(thought.right.sum()),
                "of": len(thought.right),
                "interval": interval,
                "gained": gained,
                "lost": lost,
            }
        )
    return rows


class _Reader(NamedTuple):
    """A model that is shown panels."""

    model: Transformer
    num_values: int

    @torch.no_grad()
    def scores(self, panels: Int64[Tensor, "b rows columns m"]) -> Float[Tensor, "b m k"]:
        """Log-probabilities of the query panel's values."""
        logits = self.model(encode(panels, num_values=self.num_values))
        assert isinstance(logits, Tensor)
        return logits[:, -panels.shape[-1] :].log_softmax(-1)

    def example(self, panels: Int64[Tensor, "b rows columns m"]) -> Example:
        """The puzzles with their answers."""
        return Example(encode(panels, num_values=self.num_values), panels[:, -1, -1])


def _searching(
    reader: _Reader,
    panels: Int64[Tensor, "b rows columns m"],
    steps: set[int],
    search: Callable[..., Iterator[CodeChange]],
) -> Iterator[Thought]:
    examples = [reader.example(about_row(panels, row)) for row in range(panels.shape[1] - 1)]
    for step, change in enumerate(search(reader.model, examples, steps=max(steps))):
        if step in steps:
            with edited(reader.model, change.edits()):
                right = _right(reader.scores(panels), panels)
            yield Thought(
                way="search",
                steps=step,
                passes=_passes(step, panels),
                right=right,
                row_losses=change.losses,
                explained=change.explained,
            )


def _asking_again(
    reader: _Reader,
    panels: Int64[Tensor, "b rows columns m"],
    steps: set[int],
    random: torch.Generator,
) -> Iterator[Thought]:
    """Add up the log-probabilities over the puzzle and others that have its answer."""
    scores, asked = reader.scores(panels), 1
    for step in sorted(steps):
        while asked < _passes(step, panels):
            same = shuffled(panels, random)
            scores = scores + same.restored(reader.scores(same.panels))
            asked += 1
        yield Thought(way="again", steps=step, passes=asked, right=_right(scores, panels))


def _passes(steps: int, panels: Int64[Tensor, "b rows columns m"]) -> int:
    """Forward and backward for each known row and step, and forward for the answer."""
    return 1 + 2 * (panels.shape[1] - 1) * steps


def _right(
    scores: Float[Tensor, "b m k"], panels: Int64[Tensor, "b rows columns m"]
) -> Bool[Tensor, " b"]:
    return (scores.argmax(-1) == panels[:, -1, -1]).all(-1)


def _joined(parts: Sequence[Thought]) -> Thought:
    """Of several batches, one."""
    fields = ("right", "row_losses", "explained")
    whole = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in fields
        if getattr(parts[0], name) is not None
    }
    return replace(parts[0], **whole)

"""Changing the latent code during the forward pass.

    with edited(model, {2: replaced(codes, pairs=[(-1, -1)])}):
        logits = model(inputs)

gives layer 2 other codes for the last token attending to itself, and leaves everything else alone.
The layers that are edited compute by the equations, which make the code explicit; all others keep
their backend. Works for every model that codes can be recorded from.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hyla.latents.observe import (
    CodeEdit,
    Observer,
    Site,
    UnsupportedModelError,
    codes_at,
    observing,
)
from hyla.latents.pairs import PairChoice, check_pairs, resolve_pairs

_Change: TypeAlias = Callable[[Float[Tensor, "B P H"]], Tensor]


@contextmanager
def edited(
    model: nn.Module, edits: Mapping[int, CodeEdit] | Mapping[Site, CodeEdit]
) -> Iterator[None]:
    """Edit the codes of layers while the context lasts.

    A layer is a number, or a `Site` where a model has several kinds of attention.
    """
    editor = _Editor({_site(layer): edit for layer, edit in edits.items()})
    with observing(model, editor):
        yield
    if editor.passes and (missing := editor.unused()):
        raise UnsupportedModelError(
            f"the model has no attention layer {missing}: nothing was edited"
        )


def replaced(
    codes: Float[Tensor, "B P H"] | Float[Tensor, "P H"] | Float[Tensor, " H"],
    pairs: PairChoice,
    *,
    heads: Sequence[int] | None = None,
) -> CodeEdit:
    """Put these codes in the place of the pairs' own; without a batch axis, in all instances."""
    return _edit(lambda own: codes.to(own).expand_as(own), pairs, heads)


def zeroed(pairs: PairChoice, *, heads: Sequence[int] | None = None) -> CodeEdit:
    """Set the codes of the pairs, or some heads' coordinates of them (ablation), to zero."""
    return _edit(torch.zeros_like, pairs, heads)


def moved(
    direction: Float[Tensor, "... H"],
    strength: float,
    pairs: PairChoice,
    *,
    heads: Sequence[int] | None = None,
) -> CodeEdit:
    """Add a direction, times a strength, to the codes of the pairs."""
    return _edit(lambda own: own + strength * direction.to(own), pairs, heads)


def _edit(change: _Change, pairs: PairChoice, heads: Sequence[int] | None) -> CodeEdit:
    check_pairs(pairs)

    def edit(code: Float[Tensor, "B H Tq Tk"]) -> Float[Tensor, "B H Tq Tk"]:
        _, num_heads, queries, keys = code.shape
        positions = resolve_pairs(pairs, queries=queries, keys=keys, device=code.device)
        own = codes_at(code, positions)
        new = change(own)
        if heads is not None:
            chosen = torch.zeros(num_heads, dtype=torch.bool, device=code.device)
            chosen[list(heads)] = True
            new = torch.where(chosen, new, own)
        code = code.clone()
        code[:, :, positions[:, 0], positions[:, 1]] = new.transpose(1, 2)
        return code

    return edit


class _Editor(Observer):
    def __init__(self, edits: Mapping[Site, CodeEdit]):
        self._edits = edits
        self._seen: set[Site] = set()

    @property
    def passes(self) -> bool:
        """Whether the model ran at all."""
        return bool(self._seen)

    def unused(self) -> list[Site]:
        """Return the sites of edits that the model does not have."""
        return sorted(self._edits.keys() - self._seen)

    def edit(self, site: Site) -> CodeEdit | None:
        self._seen.add(site)
        return self._edits.get(site)


def _site(layer: int | Site) -> Site:
    return layer if isinstance(layer, Site) else Site("self", layer)

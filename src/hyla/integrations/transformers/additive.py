"""What a mask that is added to scores means: which of its entries hide a pair, and which do not.

A softmax gives a pair no weight if its score is far below the others, so models write masks in
many ways: -inf, a dtype's minimum, -1e9, -10000 and, in Swin's windows, -100 on top of a learned
bias. To HYLA, whose code is not a softmax, such a number would be a score like any other. So an
entry that everybody means as masked is a masked pair here, and the rest is a bias.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# Biases of models lie near 0, masks at -100 or far below. Where nothing lies between these two,
# there is no doubt about which is which.
_LOWEST_BIAS = -30.0
_HIGHEST_MASK = -70.0

_Meaning = TypeVar("_Meaning")


def looked_at_once(look: Callable[..., _Meaning]) -> Callable[..., _Meaning]:
    """Remember what a mask means, given what goes with it: all layers of a model get the same.

    It is looked at again after it was written to, and, since inference tensors do not tell, each
    time if it is one.
    """
    known = WeakIdKeyDictionary()

    @functools.wraps(look)
    def remembered(mask: Tensor, *beside: Tensor) -> _Meaning:
        version = None if mask.is_inference() else mask._version
        found = known.get(mask)
        if found is None or version is None or found[0] != version:
            found = known[mask] = version, look(mask, *beside)
        return found[1]

    return remembered


def read_additive(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return which pairs attend, True = attend, and what is added to the scores of those.

    Raises a ValueError for a tensor in which masked pairs cannot be told from biased ones.
    """
    if torch.compiler.is_compiling():  # to look at values would break the graph
        attended = attended_pairs(mask)
        return attended, mask.masked_fill(~attended, 0)
    attended, has_bias = _meaning(mask)
    return attended, mask.masked_fill(~attended, 0) if has_bias else None


def attended_pairs(mask: Tensor) -> Tensor:
    """Return True where a pair attends, of a boolean mask or one that is added to scores."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(
            f"an attention mask of {mask.dtype} can mean 1 = attend or a number to add to scores; "
            "give a boolean one (True = attend) or a floating-point one (added to scores)"
        )
    return mask > (_LOWEST_BIAS + _HIGHEST_MASK) / 2


@looked_at_once
def _meaning(mask: Tensor) -> tuple[Tensor, bool]:
    """Return which pairs attend, and whether their entries differ: a constant is no bias."""
    attended = attended_pairs(mask)
    unclear = (mask > _HIGHEST_MASK) & (mask < _LOWEST_BIAS)
    lowest = torch.where(attended, mask, torch.inf).amin()
    highest = torch.where(attended, mask, -torch.inf).amax()
    binary = ((mask == 0) | (mask == 1)).all() & (lowest < highest)
    unclear_, binary_, differ = torch.stack((unclear.any(), binary, lowest < highest)).tolist()
    if unclear_:
        raise ValueError(
            f"an additive attention mask has entries between {_HIGHEST_MASK:g} and "
            f"{_LOWEST_BIAS:g}, which can be biases (such as those of distant pairs in ALiBi) or "
            "mean masked pairs; give masked pairs as a boolean mask or as -inf, and biases by "
            "themselves as position_bias"
        )
    if binary_:
        raise ValueError(
            "an attention mask of floating-point zeros and ones is added to scores and would mask "
            "nothing; give a boolean one (True = attend)"
        )
    return attended, differ

"""What a mask that is added to scores means: which of its entries hide a pair, and which do not.

A softmax gives a pair no weight if its score is far below the others, so models write masks in
many ways: -inf, a dtype's minimum, -1e9, -10000 and, in Swin's windows, -100 on top of a learned
bias. To HYLA, whose code is not a softmax, such a number would be a score like any other. So an
entry that everybody means as masked is a masked pair here, and the rest is a bias.
"""

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# Biases of models lie near 0, masks at -100 or far below. Where nothing lies between these two,
# there is no doubt about which is which.
_LOWEST_BIAS = -30.0
_HIGHEST_MASK = -70.0

# All layers of a model get the same mask: it is looked at once, and again after it was written to
# (which inference tensors do not tell: those are looked at each time).
_meaning_of_mask = WeakIdKeyDictionary()


def read_additive(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return which pairs attend, True = attend, and what is added to the scores of those.

    Raises a ValueError for a tensor in which masked pairs cannot be told from biased ones.
    """
    if torch.compiler.is_compiling():  # to look at values would break the graph
        attended = attended_pairs(mask)
        return attended, mask.masked_fill(~attended, 0)
    version = None if mask.is_inference() else mask._version
    known = _meaning_of_mask.get(mask)
    if known is None or version is None or known[0] != version:
        attended = attended_pairs(mask)
        known = version, attended, _has_bias(mask, attended)
        _meaning_of_mask[mask] = known
    _, attended, has_bias = known
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


def _has_bias(mask: Tensor, attended: Tensor) -> bool:
    """Whether the entries of attending pairs differ: one constant changes no softmax."""
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
    return differ

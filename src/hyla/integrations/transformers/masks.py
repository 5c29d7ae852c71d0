"""The masks that models make under our names, and what it means that a model gives none.

To "eager" attention, no mask means that everything is seen. For "sdpa", transformers leaves masks
out that say no more than `module.is_causal`, which spares memory and keeps kernels fast; but there
are models in which that flag is wrong or missing. So masks are spelled out, as for "eager", until a
forward pass has shown that the flags of the model agree with its masks.
"""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.masking_utils import sdpa_mask

from hyla.integrations.transformers.additive import attended_pairs

# A field of the configs of models whose flags agreed. On the config, since that is all that is
# known where masks are made; copies of a model keep it.
FLAGS_AGREE = "_hyla_flags_agree"


def pair_mask(
    *,
    config: PreTrainedConfig | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **arguments: Any,
) -> Tensor | None:
    """Return a boolean mask [B, 1, Q, K], True = attend, or None where `is_causal` says it all."""
    trusted = getattr(config, FLAGS_AGREE, False)
    return sdpa_mask(
        allow_is_causal_skip=allow_is_causal_skip and trusted,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and trusted,
        **arguments,
    )


def is_causal_without_mask(module: nn.Module, is_causal: bool | None) -> bool:
    """Whether attention that was given no mask is causal; `is_causal` is what its model said."""
    trusted = getattr(getattr(module, "config", None), FLAGS_AGREE, False)
    return trusted and flag_of(module, is_causal)


def forget_flags(config: PreTrainedConfig) -> None:
    """Spell out the masks of a model until the next pass that is watched."""
    config.__dict__.pop(FLAGS_AGREE, None)


class FlagsSeen:
    """Whether the flags of the modules that attended in a forward pass agree with their masks."""

    def __init__(self):
        self._agree = True
        self._configs: list[PreTrainedConfig] = []

    def see(
        self, module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, flag: bool | None
    ) -> None:
        """Compare a module's flag with the mask it was given."""
        config = getattr(module, "config", None)
        if not isinstance(config, PreTrainedConfig):
            self._agree = False
            return
        self._configs.append(config)
        num_queries, num_keys = query.shape[2], key.shape[2]
        if getattr(config, FLAGS_AGREE, False) and (num_queries == 1 or mask is None):
            return
        if num_queries == 1:  # nothing is ahead of it: no evidence, and no trust without any
            self._agree = False
            return
        if mask is None:
            sees_ahead = True
        elif num_queries == num_keys:
            sees_ahead = bool(attended_pairs(mask)[..., :num_keys].triu(1).any())
        else:  # a cache, or the keys of another sequence: only what sees all cannot be causal
            sees_ahead = bool(attended_pairs(mask)[..., :num_keys].all())
            if not sees_ahead:
                self._agree = False
                return
        self._agree &= sees_ahead != flag_of(module, flag)

    def conclude(self) -> None:
        """Trust the flags from now on, if all agreed: models share masks between their parts."""
        for config in self._configs:
            if self._agree:
                config.__dict__[FLAGS_AGREE] = True
            else:
                forget_flags(config)


def flag_of(module: nn.Module, is_causal: bool | None) -> bool:
    """Return what "sdpa" would take for granted."""
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)

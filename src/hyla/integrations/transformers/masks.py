"""The masks that models make under our names, and what it means that a model gives none.

For "sdpa", transformers leaves a mask out that says no more than `module.is_causal` does. Models
that do not support "sdpa" never had to set that flag: in some it is False in a causal decoder, in
others it is missing in an encoder. Those get every mask spelled out, as they do for "eager".
"""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import sdpa_mask

# Config classes of models whose flag can be trusted. Not a set of those that cannot: a model that
# was unpickled has never been looked at, and must not lose its causality by that.
_flag_is_trusted: dict[type, bool] = {}


def look_at_flag(model: PreTrainedModel) -> None:
    """Note whether the model's attention says truthfully whether it is causal."""
    config_class = type(model.config)
    trusted = bool(model._supports_sdpa) and _flag_is_trusted.get(config_class, True)
    _flag_is_trusted[config_class] = trusted


def pair_mask(
    *,
    config: PreTrainedConfig | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **arguments: Any,
) -> Tensor | None:
    """Return a boolean mask [B, 1, Q, K], True = attend, or None where `is_causal` says it all."""
    trusted = _flag_is_trusted.get(type(config), False)
    return sdpa_mask(
        allow_is_causal_skip=allow_is_causal_skip and trusted,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and trusted,
        **arguments,
    )


def is_causal_without_mask(module: nn.Module, is_causal: bool | None) -> bool:
    """Whether attention that was given no mask is causal; `is_causal` is what its model said."""
    config = getattr(module, "config", None)
    if isinstance(config, PreTrainedConfig) and not _flag_is_trusted.get(type(config), False):
        return False
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)

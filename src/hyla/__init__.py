"""Attention as a hypernetwork, in PyTorch.

The names below are imported when they are first used: `hyla --help` need not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hyla.attention import PRESETS, RECOMMENDED, AttentionSpec
    from hyla.nn import (
        KeyValueCache,
        MultiHeadAttention,
        Transformer,
        TransformerConfig,
        branch_scales,
    )
    from hyla.tasks import FuzzyLogic, FuzzyLogicConfig, Sraven, SravenConfig

_HOMES = {
    "PRESETS": "hyla.attention",
    "RECOMMENDED": "hyla.attention",
    "AttentionSpec": "hyla.attention",
    "KeyValueCache": "hyla.nn",
    "MultiHeadAttention": "hyla.nn",
    "Transformer": "hyla.nn",
    "TransformerConfig": "hyla.nn",
    "FuzzyLogic": "hyla.tasks",
    "FuzzyLogicConfig": "hyla.tasks",
    "Sraven": "hyla.tasks",
    "SravenConfig": "hyla.tasks",
    "branch_scales": "hyla.nn",
}

__all__ = [
    "PRESETS",
    "RECOMMENDED",
    "AttentionSpec",
    "FuzzyLogic",
    "FuzzyLogicConfig",
    "KeyValueCache",
    "MultiHeadAttention",
    "Sraven",
    "SravenConfig",
    "Transformer",
    "TransformerConfig",
    "branch_scales",
]


_PARTS = ("attention", "latents", "nn", "tasks", "training")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"hyla.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'hyla' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PARTS})

"""Attention as a pure function of (q, k, v): a latent code and the value network it configures."""

from hyla.attention.api import attention
from hyla.attention.distance import DistanceBias
from hyla.attention.explanation import Explanation, explain
from hyla.attention.normalisation import NORMALISATIONS
from hyla.attention.output import OUTPUTS
from hyla.attention.paths.packed import packed_attention
from hyla.attention.paths.paged import paged_attention
from hyla.attention.phi import PHIS
from hyla.attention.spec import (
    PRESETS,
    RECOMMENDED,
    VALUE_NETWORKS,
    AttentionSpec,
    register_attention,
    resolve_spec,
)

__all__ = [
    "NORMALISATIONS",
    "OUTPUTS",
    "PHIS",
    "PRESETS",
    "RECOMMENDED",
    "VALUE_NETWORKS",
    "AttentionSpec",
    "DistanceBias",
    "Explanation",
    "attention",
    "explain",
    "packed_attention",
    "paged_attention",
    "register_attention",
    "resolve_spec",
]

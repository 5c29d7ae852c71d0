"""Modules: the attention layer, positions, feed-forward networks, the transformer."""

from hyla.nn.cache import KeyValueCache
from hyla.nn.convert import state_dict_from_flax
from hyla.nn.feed_forward import GeluMlp, MixtureOfExperts, SwiGlu
from hyla.nn.multi_head_attention import MultiHeadAttention
from hyla.nn.positions import T5RelativeBias, rotary
from hyla.nn.scales import BranchScales, branch_scales
from hyla.nn.transformer import Transformer, TransformerDetails
from hyla.nn.transformer_config import TransformerConfig

__all__ = [
    "BranchScales",
    "GeluMlp",
    "KeyValueCache",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "SwiGlu",
    "T5RelativeBias",
    "Transformer",
    "TransformerConfig",
    "TransformerDetails",
    "branch_scales",
    "rotary",
    "state_dict_from_flax",
]

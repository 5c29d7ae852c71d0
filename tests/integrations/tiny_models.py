"""The smallest model of every architecture of transformers that its config class gives by rule."""

import copy
import importlib.util
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

MOST_PARAMETERS = 40_000_000

# The first pattern that a field's whole name matches says what it becomes, if it is larger.
Sizes = list[tuple[str, int]]
LENGTHS: Sizes = [
    (r"(.*_)?vocab_size", 99),
    (r"n_positions|n_ctx|max_(.*_)?positions?(_embeddings)?|seq_length", 64),
    (r"num_feat_extract_layers|num_conv_layers|num_adapter_layers", 99),  # lengths of other lists
    (r"n_layers?|(.*_)?num_.*layers|num_layers|.*_layers|(.*_)?num_blocks|depth", 2),
    (r".*num_experts|num_local_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_topk|.*top_k|num_selected_experts", 2),
]
HEADS: Sizes = [
    (r"(image|crop|input|img)_size", 32),
    (r"patch_size", 8),
    (r"num_key_value_heads|num_kv_heads|.*_key_value_heads", 2),
    (r"n_heads?|num_heads|.*attention_heads|num_.*_heads", 4),
    (r"intermediate_size|(.*_)?ffn_dim|d_ff|.*intermediate_size|d_inner|ffn_hidden_size", 48),
]
SMALL: Sizes = [
    (r"(.*_)?head_dim|attention_head_dim|d_kv|kv_channels|attention_head_size", 8),
    (r"d_model|n_embd|dim|(.*_)?hidden_size|(.*_)?embedding_size|width|d_embed|.*_dim|.*_width", 32),
]
# Widths of heads stay as they are: in some models, parts of a head have widths of their own.
MEDIUM: Sizes = [(r"d_model|n_embd|(.*_)?hidden_size|(.*_)?embed_dim", 512)]
# Where only every fourth layer attends.
FOUR_LAYERS: Sizes = [(r"num_hidden_layers", 4)]
EQUAL_HEADS: Sizes = [(r"num_key_value_heads|num_kv_heads|.*_key_value_heads", 4)]

ATTEMPTS: list[Sizes] = [
    LENGTHS + HEADS + SMALL,
    LENGTHS + HEADS + MEDIUM,
    EQUAL_HEADS + LENGTHS + HEADS + MEDIUM,
    FOUR_LAYERS + LENGTHS + HEADS + SMALL,
    FOUR_LAYERS + LENGTHS + HEADS + MEDIUM,
    LENGTHS,
]


def tiny_fields(config: PreTrainedConfig, sizes: Sizes) -> dict[str, Any]:
    """Return what to change of a default config to make it small; of its parts as dicts."""
    fields: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if name in config.sub_configs or isinstance(value, bool) or not isinstance(value, int):
            continue
        for pattern, size in sizes:
            if re.fullmatch(pattern, name):
                fields[name] = min(value, size)
                break
        else:
            if name.endswith(("_token_id", "_token_index")) and value > 98:
                fields[name] = 98
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            fields[name] = {"model_type": part.model_type} | tiny_fields(part, sizes)
    return fields


def model_class(model_type: str) -> type[PreTrainedModel] | None:
    """Return the class that shows most of the architecture: one with logits where there is one."""
    for task in ("FOR_CAUSAL_LM_", "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "FOR_IMAGE_TEXT_TO_TEXT_", ""):
        names = getattr(modeling_auto, f"MODEL_{task}MAPPING_NAMES")
        if model_type in names:
            name = names[model_type]
            return getattr(transformers, name if isinstance(name, str) else name[0], None)
    config_class = CONFIG_MAPPING[model_type]
    file = config_class.__module__.replace(".configuration_", ".modeling_")
    if not importlib.util.find_spec(file):
        return None
    module = importlib.import_module(file)
    found = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, PreTrainedModel)
        and kind.__module__ == file
        and kind.config_class is config_class
        and "forward" in vars(kind)
    ]
    return found[-1] if found else None


class CannotBuildError(Exception):
    """Says why there is no model of an architecture here."""


def tiny_configs(model_type: str) -> Iterator[PreTrainedConfig]:
    """Yield configs, the smallest first; not all of them build."""
    for sizes in ATTEMPTS:
        default = CONFIG_MAPPING[model_type]()
        yield type(default)(**tiny_fields(default, sizes))


def build(
    kind: type[PreTrainedModel], config: PreTrainedConfig, name: str
) -> PreTrainedModel:
    """Return a model with weights at which attention matters, the same for every name."""
    with torch.device("meta"):
        size = sum(x.numel() for x in kind._from_config(copy.deepcopy(config)).parameters())
    if size > MOST_PARAMETERS:
        raise CannotBuildError(f"its smallest config has {size / 1e6:.0f} M parameters")
    torch.manual_seed(0)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    return model

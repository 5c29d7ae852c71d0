"""The smallest model of every architecture of transformers that its config class gives by rule."""

import copy
import importlib.util
import inspect
import re
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

MOST_PARAMETERS = 20_000_000

# The first pattern that a field's whole name matches says what it becomes, if it is larger.
Sizes = list[tuple[str, int]]
LENGTHS: Sizes = [
    (r"(.*_)?vocab_size", 99),
    (r"n_positions|n_ctx|max_(.*_)?positions?(_embeddings)?|seq_length", 64),
    (r"num_feat_extract_layers|num_conv_layers|num_adapter_layers", 99),  # lengths of other lists
    (r"n_layers?|(.*_)?num_.*layers|num_layers|.*_layers|(.*_)?num_blocks|depth", 2),
    (r".*num_experts|num_local_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_topk|moe_k|.*top_k|num_selected_experts", 2),
    (r"topk_group|n_group", 1),
]
HEADS: Sizes = [
    (r"(image|crop|input|img)_size", 32),
    (r"patch_size", 8),
    (r"num_key_value_heads|num_kv_heads|.*_key_value_heads", 2),
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"n_heads?|num_heads|.*attention_heads|num_.*_heads", 4),
    (r"intermediate_size|(.*_)?ffn_dim|d_ff|.*intermediate_size|d_inner|ffn_hidden_size", 48),
]
SMALL: Sizes = [
    (r"(.*_)?head_dim|attention_head_dim|d_kv|kv_channels|attention_head_size", 8),
    (
        r"d_model|n_embd|dim|(.*_)?hidden_size|(.*_)?embedding_size|width|d_embed|.*_dim|.*_width",
        32,
    ),
]
# Widths of heads stay as they are: in some models, parts of a head have widths of their own.
MEDIUM: Sizes = [(r"d_model|n_embd|(.*_)?hidden_size|(.*_)?embed_dim", 512)]
# Where only every fourth layer attends, or every eighth.
FOUR_LAYERS: Sizes = [(r"num_hidden_layers", 4)]
EIGHT_LAYERS: Sizes = [(r"num_hidden_layers", 8)]
EQUAL_HEADS: Sizes = [(r"num_key_value_heads|num_kv_heads|.*_key_value_heads", 4)]

ATTEMPTS: list[Sizes] = [
    LENGTHS + HEADS + SMALL,
    LENGTHS + HEADS + MEDIUM,
    EQUAL_HEADS + LENGTHS + HEADS + SMALL,
    EQUAL_HEADS + LENGTHS + HEADS + MEDIUM,
    FOUR_LAYERS + LENGTHS + HEADS + SMALL,
    FOUR_LAYERS + LENGTHS + HEADS + MEDIUM,
    EQUAL_HEADS + EIGHT_LAYERS + LENGTHS + HEADS + SMALL,
    LENGTHS,
]


# What no rule gives.
_RESNET = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage2", "stage3", "stage4"],
    },
}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}
_GLM = {"text_config": {"rope_parameters": _ROPE}}
_SWIN = {  # windows smaller than the image, so that they are shifted
    "embed_dim": 16,
    "num_heads": [2, 4],
    "depths": [2, 2],
    "window_size": 4,
    "image_size": 32,
    "patch_size": 2,
}
_SWIN_OF_FOUR = _SWIN | {
    "model_type": "swin",
    "num_heads": [2, 2, 2, 2],
    "depths": [2, 1, 1, 1],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
BY_HAND: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "conditional_detr": _RESNET,
    "dab-detr": _RESNET,
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "deformable_detr": _RESNET,
    "detr": _RESNET,
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "donut-swin": _SWIN,
    "esm": {"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 5},
    "gemma4_text": {"hidden_size_per_layer_input": 0},
    "glm46v": _GLM,
    "glm4v": _GLM,
    "glm4v_text": {"rope_parameters": _ROPE},
    "glm_image_text": {"rope_parameters": _ROPE},
    "glm_image": _GLM,
    "glm_ocr": _GLM,
    "glm_ocr_text": {"rope_parameters": _ROPE},
    "glmga": _GLM,
    "gpt_neo": {"attention_types": [[["global"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "led": {"attention_window": [4, 4]},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]},
    "maskformer": {"backbone_config": _SWIN_OF_FOUR},
    "maskformer-swin": _SWIN,
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "swin": _SWIN,
    "swin2sr": _SWIN,
    "swinv2": _SWIN,
    "table-transformer": _RESNET,
    "yolos": {"image_size": [32, 32]},
}


def tiny_fields(config: PreTrainedConfig, sizes: Sizes) -> dict[str, Any]:
    """Return what to change of a default config to make it small; of its parts as dicts."""
    fields: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if name == "rope_parameters" and "mrope_section" in (value or {}):
            fields[name] = value | {"mrope_section": _sections(fields, config, value)}
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


def _sections(fields: dict[str, Any], config: PreTrainedConfig, rope: dict[str, Any]) -> list[int]:
    """Return how half of a head is shared out to time, height and width."""
    heads = getattr(config, "num_attention_heads", 4)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if "hidden_size" in fields:
        heads = min(heads, 4)
        width = min(width, 8) if fields["hidden_size"] == 32 else fields["hidden_size"] // heads
    half = int(width * rope.get("partial_rotary_factor", 1)) // 2
    return [half - 2 * (half // 3), half // 3, half // 3]


TASKS = (
    "FOR_SEQ_TO_SEQ_CAUSAL_LM_",
    "FOR_SPEECH_SEQ_2_SEQ_",
    "FOR_CAUSAL_LM_",
    "FOR_IMAGE_TEXT_TO_TEXT_",
    "",
)


def model_classes(model_type: str) -> list[type[PreTrainedModel]]:
    """Return the classes that may show the architecture, those with logits first."""
    found = []
    for task in TASKS:
        name = getattr(modeling_auto, f"MODEL_{task}MAPPING_NAMES").get(model_type)
        name = name[0] if isinstance(name, tuple | list) else name
        found.append(getattr(transformers, name, None) if name else None)
    config_class = CONFIG_MAPPING[model_type]
    file = config_class.__module__.replace(".configuration_", ".modeling_")
    if not any(found) and importlib.util.find_spec(file):
        module = importlib.import_module(file)
        found += [
            kind
            for _, kind in inspect.getmembers(module, inspect.isclass)
            if issubclass(kind, PreTrainedModel)
            and kind.__module__ == file
            and kind.config_class is config_class
            and "forward" in vars(kind)
        ][::-1]
    return [kind for kind in found if kind is not None]


class CannotBuildError(Exception):
    """Says why there is no model of an architecture here."""


def tiny_config(model_type: str, sizes: Sizes) -> PreTrainedConfig:
    """Return a small config, by rule or by hand; not all of them build."""
    default = CONFIG_MAPPING[model_type]()
    return type(default)(**_merged(tiny_fields(default, sizes), BY_HAND.get(model_type, {})))


def _merged(fields: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    parts = {k: _merged(fields[k], v) for k, v in more.items() if k.endswith("text_config")}
    return fields | more | parts


def build(kind: type[PreTrainedModel], config: PreTrainedConfig, name: str) -> PreTrainedModel:
    """Return a model with weights at which attention matters, the same for every name."""
    with torch.device("meta"):
        size = sum(x.numel() for x in kind._from_config(copy.deepcopy(config)).parameters())
    if size > MOST_PARAMETERS:
        raise CannotBuildError(f"its smallest config has {size / 1e6:.0f} M parameters")
    torch.manual_seed(0)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.numel():
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    return model

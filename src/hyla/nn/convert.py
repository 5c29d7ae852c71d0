"""Parameters of the authors' JAX models, by their names, as a state dict of ours."""

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_LAYERS = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "out_proj",
    "embedding": "embedding",
    "logitdense": "head",
    "decoder_norm": "final_norm",
    "norm1": "attention_norm",
    "norm2": "feed_forward_norm",
    "Dense_0": "feed_forward.up",
    "Dense_1": "feed_forward.down",
}


def state_dict_from_flax(parameters: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Convert dotted parameter names and arrays, of a whole transformer or of one layer."""
    return {_our_name(name): _our_tensor(name, array) for name, array in parameters.items()}


def _our_name(name: str) -> str:
    parts = []
    for part in name.split("."):
        block = re.fullmatch(r"transformer_block_(\d+)", part)
        if block:
            parts.append(f"blocks.{block.group(1)}")
        elif part == "sequence_mixer":
            parts.append("attention")
        elif part == "relative_embedding":
            parts.append("relative_bias")
        elif part == "rel_embedding":
            parts.append("table")
        elif part in ("kernel", "scale"):
            parts.append("weight")
        elif part == "bias":
            parts.append("bias")
        elif part in _LAYERS:
            parts.append(_LAYERS[part])
        elif part != "state_mixer":
            raise ValueError(f"{name!r} is not a parameter name of the authors' models ({part!r})")
    return ".".join(parts)


def _our_tensor(name: str, array: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(np.array(array))
    layer, leaf = name.split(".")[-2:]
    if leaf == "kernel":
        # flax: inputs first, heads apart; torch: outputs first, heads flattened.
        inputs = tensor.ndim - 1 if layer == "out" else 1
        return tensor.flatten(inputs).flatten(0, inputs - 1).T.contiguous()
    return tensor.flatten() if leaf == "bias" else tensor

"""Inputs for a model that one knows nothing of but its config and its forward's arguments."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

BATCH, LENGTH = 2, 9
Inputs = dict[str, Tensor]


def example_inputs(model: PreTrainedModel) -> Inputs:
    """Return inputs that the model takes; a ValueError says that none were found."""
    errors = []
    for inputs in _candidates(model):
        try:
            with torch.no_grad():
                model(**inputs)
        except Exception as error:  # whatever a model says to inputs that are not its own
            errors.append(error)
        else:
            return inputs
    reason = f": {errors[0]}" if errors else ""
    raise ValueError(
        f"no example inputs for {type(model).__name__} were found (main input "
        f"{model.main_input_name!r}); give them as verify(model, inputs){reason}"
    ) from (errors[0] if errors else None)


def _field(config: PreTrainedConfig, *names: str, default: int) -> int:
    """Return the first of the fields that the config has, or a part of it."""
    parts = [getattr(config, part, None) for part in config.sub_configs]
    for owner in [config, *parts]:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, list | tuple) and value and isinstance(value[0], int):
                value = max(value)
            if isinstance(value, int):
                return value
    return default


def _candidates(model: PreTrainedModel) -> Iterator[Inputs]:
    """Yield inputs that models with such arguments may take, the likely ones first."""
    config: PreTrainedConfig = model.config
    known = inspect.signature(model.forward).parameters
    device, dtype = model.device, model.dtype
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    highest = max(4, min(60, _field(config, "vocab_size", default=60)))
    tokens = torch.randint(3, highest, (BATCH, LENGTH), generator=generator).to(device)
    more: dict[str, Any] = {}
    if "decoder_input_ids" in known:
        more["decoder_input_ids"] = tokens.flip(1)
    if "input_ids" in known:
        if "bbox" in known:
            yield {"input_ids": tokens, "bbox": tokens[..., None].expand(-1, -1, 4), **more}
        yield {"input_ids": tokens, **more}
    channels = _field(config, "num_channels", "in_channels", "in_chans", default=3)
    side = _field(config, "image_size", "img_size", default=32)
    for size in dict.fromkeys((side, 32, 64, 224)):
        if "pixel_values" in known:
            pixels = {"pixel_values": noise(BATCH, channels, size, size)}
            yield pixels | more
            if "input_ids" in known:
                yield pixels | {"input_ids": tokens} | more
            frames = _field(config, "num_frames", default=4)
            yield {"pixel_values": noise(BATCH, frames, channels, size, size)}
        if "pixel_values_videos" in known:
            frames = _field(config, "num_frames", "frames_per_clip", default=4)
            yield {"pixel_values_videos": noise(BATCH, frames, channels, size, size)}
    if "grid_thw" in known:  # patches of two images of 4 x 4, one after the other
        patch = _field(config, "patch_size", default=8)
        width = channels * patch**2 * _field(config, "temporal_patch_size", default=1)
        grid = torch.tensor([[1, 4, 4], [1, 4, 4]], device=device)
        yield {next(iter(known)): noise(32, width), "grid_thw": grid}
        yield {next(iter(known)): noise(32, channels, patch, patch), "grid_thw": grid}
    if "input_values" in known:
        yield {"input_values": noise(BATCH, 4000), **more}
        yield {"input_values": noise(BATCH, 1, 4000), **more}
        bins = _field(config, "num_mel_bins", default=80)
        yield {"input_values": noise(BATCH, _field(config, "max_length", default=64), bins)}
    if "input_features" in known:
        bins = _field(
            config,
            "num_mel_bins",
            "input_feat_per_channel",
            "feature_projection_input_dim",
            "feature_size",
            "input_dim",
            default=80,
        )
        times = (2 * _field(config, "max_source_positions", default=32), 64, 3000)
        for time in dict.fromkeys(times):
            for shape in ((BATCH, bins, time), (BATCH, time, bins)):
                features = {"input_features": noise(*shape), **more}
                ones = torch.ones(BATCH, time, dtype=torch.long, device=device)
                yield features
                for name in ("attention_mask", "input_features_mask"):
                    if name in known:
                        yield features | {name: ones}
    width = _field(config, "hidden_size", "d_model", default=32)
    for name in ("inputs_embeds", "hidden_states"):
        if name in known:
            yield {name: noise(BATCH, LENGTH, width)}

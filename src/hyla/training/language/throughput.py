"""How much of a GPU's arithmetic a training run uses."""

import torch

from hyla.nn import TransformerConfig
from hyla.nn.decoders import training_flops_per_token

# Dense tensor-core products a second, by the vendor's data sheets: (bf16, tf32).
_PEAKS = {
    "H200": (989e12, 495e12),
    "H100": (989e12, 495e12),
    "A100": (312e12, 156e12),
    "L40S": (362e12, 183e12),
    "RTX 4090": (165e12, 83e12),
    "RTX 3090": (71e12, 36e12),
}


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the device's peak for a precision; None where it is not known."""
    if device.type != "cuda" or precision not in ("bf16", "tf32"):
        return None
    name = torch.cuda.get_device_name(device)
    for model, peaks in _PEAKS.items():
        if model in name:
            return peaks[("bf16", "tf32").index(precision)]
    return None


def utilisation(
    model: TransformerConfig, tokens_per_second: float, peak: float | None
) -> float | None:
    """Return the model's FLOP utilisation, given the peak of all devices together."""
    return None if peak is None else tokens_per_second * training_flops_per_token(model) / peak

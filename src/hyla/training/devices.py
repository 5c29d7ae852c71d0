"""Where models are computed, and when they do not fit there."""

import torch


class ModelTooLargeError(RuntimeError):
    """Not even one model fits into the device's memory."""


def resolve_device(device: torch.device | str) -> torch.device:
    """Turn "auto" into the GPU if there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but PyTorch sees no GPU; use cpu")
    return device

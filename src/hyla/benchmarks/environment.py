"""What a figure was measured with."""

import platform

import torch


def environment(device: torch.device) -> dict[str, str]:
    """Device and versions, to be written beside every measurement."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"CPU ({torch.get_num_threads()} threads)"
    return {
        "device": name,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }

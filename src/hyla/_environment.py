"""What numbers were computed with: written beside every run and every measurement."""

import platform

import torch


def environment(device: torch.device) -> dict[str, str | None]:
    """Return the device and the versions that matter on it; CUDA's is None where it has no part."""
    on_gpu = device.type == "cuda"
    cpu = f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else cpu,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "python": platform.python_version(),
    }

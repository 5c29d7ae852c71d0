"""What is installed: versions, devices, and the optional parts with how to get them."""

import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from hyla import __version__
from hyla._environment import cpu_threads, environment, git_commit
from hyla._errors import install_command

# The extras of pyproject.toml that a user may want: what for, and which distributions they need.
# A source tree that was never installed has no metadata to read them from; a test compares.
EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tables": ("results and exports as tables", ("pandas", "pyarrow")),
    "figures": ("figures and reports", ("matplotlib", "plotly")),
    "latents": (
        "analysis of latent codes",
        ("pandas", "pyarrow", "matplotlib", "plotly", "scikit-learn"),
    ),
    "slurm": ("jobs on a Slurm cluster", ("submitit",)),
    "tracking": ("TensorBoard and Weights & Biases", ("tensorboard", "wandb")),
    "language": ("preparing text for language models", ("sentencepiece", "datasets")),
    "transformers": ("Hugging Face models", ("transformers", "accelerate")),
    "onnx": ("`hyla export --format onnx`", ("onnx", "onnxscript", "onnxruntime")),
    "inspection": ("hooks of TransformerLens and nnsight", ("transformer-lens", "nnsight")),
    "evaluation": ("SRAVEN in lm-evaluation-harness", ("lm-eval", "datasets")),
    "kernels": ("kernels of the Hugging Face hub", ("kernels",)),
    "reasoning-gym": ("SRAVEN as a reasoning-gym dataset", ("reasoning-gym",)),
    "explorer": (
        "`hyla explore`",
        ("matplotlib", "plotly", "fastapi", "uvicorn", "scikit-learn"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Extra:
    """An optional part: what it is for, what of it is missing, and how to install it."""

    name: str
    purpose: str
    missing: tuple[str, ...]
    install: str


def versions(device: torch.device) -> dict[str, str | None]:
    """Return what numbers on `device` depend on; None where there is none."""
    found = environment(device)
    return {
        "hyla": f"{__version__}{f' ({commit})' if (commit := git_commit()) else ''}",
        "python": found["python"],
        "system": platform.platform(terse=True),
        "torch": found["torch"],
        "cuda": torch.version.cuda,
        "driver": _driver_version(),
        "triton": _installed("triton"),
    }


def devices() -> list[str]:
    """Describe the CPU and every GPU that torch sees."""
    cpu = f"CPU: {platform.machine()}, torch uses {cpu_threads()}"
    return [cpu, *map(_gpu, range(torch.cuda.device_count()))]


def extras() -> list[Extra]:
    """Return every optional part, with what of it is missing here."""
    return [
        Extra(
            name=name,
            purpose=purpose,
            missing=tuple(need for need in needs if _installed(need) is None),
            install=install_command(name),
        )
        for name, (purpose, needs) in EXTRAS.items()
    ]


def _gpu(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return (
        f"GPU {index}: {properties.name}, compute capability {properties.major}.{properties.minor},"
        f" {properties.total_memory / 2**30:.0f} GiB"
    )


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.partition("\n")[0].strip() or None

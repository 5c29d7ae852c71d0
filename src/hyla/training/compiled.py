"""Compiled code that outlives its process: kept beside the runs, so that a shape compiles once.

What torch.compile and Triton compile is keyed by them: by the graph with its shapes, by torch, by
the device. The fused kernels (`hyla.attention.kernels.nvrtc`) lie in the same folder. Processes may
share it, as every file appears whole, and it may be deleted at any time.
"""

import os
from pathlib import Path

import torch

_FOLDER = ".compiled"
# Where torch.compile looks, in any process. Whoever sets it decides.
_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def folder_of_compiled(root: Path) -> Path:
    """Return where code of this version of torch is kept under a folder of runs."""
    return root.absolute() / _FOLDER / f"torch-{torch.__version__}"


def keep_compiled(root: Path) -> None:
    """Let this process, and those it starts, use what was compiled for earlier runs of `root`.

    Of several folders in one process the first is used for all.
    """
    os.environ.setdefault(_VARIABLE, str(folder_of_compiled(root)))

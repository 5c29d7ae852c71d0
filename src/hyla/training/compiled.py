"""Compiled code that outlives its process: kept beside the runs, so that a shape compiles once.

torch.compile finds its code by the graph with its shapes, by torch and by the device, but not by
what our operators do in their gradients: so each state of hyla's sources has a folder of its own.
The fused kernels (`hyla.attention.kernels.nvrtc`) lie there too. Processes may share it, as every
file appears whole, and it may be deleted at any time.
"""

import functools
import hashlib
import os
from pathlib import Path

import torch

_FOLDER = ".compiled"
# Where torch.compile looks, in any process. Whoever sets it decides.
_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def folder_of_compiled(root: Path) -> Path:
    """Return where code of this version of torch and of hyla is kept under a folder of runs."""
    return root.absolute() / _FOLDER / f"torch-{torch.__version__}-hyla-{_sources()}"


@functools.cache
def _sources() -> str:
    """Return a short hash of all modules of hyla."""
    package = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def keep_compiled(root: Path) -> None:
    """Let this process, and those it starts, use what was compiled for earlier runs of `root`.

    Of several folders in one process the first is used for all.
    """
    os.environ.setdefault(_VARIABLE, str(folder_of_compiled(root)))

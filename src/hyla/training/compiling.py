"""How training compiles its models, and where the code is kept: beside the runs.

torch.compile finds its code by the graph with its shapes, by torch, by the device and by hyla's
sources (`hyla._compiler_tag`): a shape compiles once. The fused kernels
(`hyla.attention.kernels.nvrtc`) lie there too. Processes may share the folder, as every file
appears whole, and it may be deleted at any time.
"""

import os
from pathlib import Path
from typing import Any

import torch

OPTIONS: dict[str, Any] = {
    # Strides padded to a round number let torch 2.11 read a tensor in another layout than it was
    # written in: https://github.com/pytorch/pytorch/issues/194281. Of attention by the equations
    # on a GPU all gradients of the scores were garbage.
    "comprehensive_padding": False
}
# Where torch.compile looks, in any process. Whoever sets it decides.
_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def folder_of_compiled(root: Path) -> Path:
    """Return where code of this version of torch is kept under a folder of runs."""
    return root.absolute() / ".compiled" / f"torch-{torch.__version__}"


def keep_compiled(root: Path) -> Path:
    """Let this process, and those it starts, use what was compiled for earlier runs of `root`.

    Of several folders in one process the first is used for all; returns which.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch sets the variable as well, to its own choice, when it first compiles.
    if os.environ.get(_VARIABLE, default_cache_dir()) == default_cache_dir():
        os.environ[_VARIABLE] = str(folder_of_compiled(root))
    return Path(os.environ[_VARIABLE])

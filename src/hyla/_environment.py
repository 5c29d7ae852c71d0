"""What numbers were computed with: written beside every run and every measurement."""

import functools
import os
import platform
import subprocess
from pathlib import Path

import torch


def environment(device: torch.device) -> dict[str, str | None]:
    """Return the device and the versions that matter on it; CUDA's is None where it has no part."""
    on_gpu = device.type == "cuda"
    cpu = f"CPU ({platform.machine()}, {cpu_threads()})"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else cpu,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "python": platform.python_version(),
    }


def cpu_threads() -> str:
    """Return how many threads torch uses, in words: ``1 thread``, ``2 threads``."""
    count = torch.get_num_threads()
    return f"{count} thread{'' if count == 1 else 's'}"


@functools.cache  # what this process imported, whatever is checked out later
def git_commit() -> str | None:
    """Return the commit of this source, with ``-dirty`` if changed; None for an installation.

    The environment variable HYLA_COMMIT is taken at its word, before git: of a copy whose history
    is another's, or that has none, only whoever copied it knows the commit. Otherwise: what lies
    beside the package (results, pages) computes nothing and may be edited. An installed copy may
    lie inside somebody else's repository, whose commit says nothing here; it is not tracked there.
    """
    if given := os.environ.get("HYLA_COMMIT"):
        return given
    source = Path(__file__)

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", *command],
            cwd=source.parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", source.name)
        # Also files that were not added yet, whatever the user's settings say of those.
        edited = git("status", "--porcelain", "--untracked-files=normal", "--", ".")
        return git("rev-parse", "HEAD") + ("-dirty" if edited else "")
    except (OSError, subprocess.SubprocessError):
        return None

"""Tests in three layers, each from the same random state and on one thread."""

import os
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

# Before anything imports Triton, which reads it then: without a GPU its kernels run by this.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# What is in neither is a unit test: one part of hyla, in this process, in seconds.
SYSTEM = (  # what users see, with a browser, Slurm, notebooks or a fresh environment
    *("docs/*", "explorer/browser/*", "explorer/test_explorer_load.py"),
    *("lab/test_slurm.py", "test_packaging.py"),
)
INTEGRATION = (  # several parts together, other processes, compilers, other people's models
    *("attention/*_host.py", "nn/test_compile.py", "latents/test_probing.py"),
    *("training/population/*", "training/language/*", "training/run/test_run_states.py"),
    *("training/run/test_file_checkpoints.py", "training/test_both_kinds.py"),
    *("explorer/*", "gpu/*", "integrations/*", "lab/*"),
    *("test_bench_*", "test_cli*", "test_completion.py", "test_doctor.py", "test_import.py"),
    *("test_plugins.py", "test_shapes.py"),
)
LAYERS = ("unit", "integration", "system")


def layer_of(path: Path) -> str:
    """The layer of a test file, by its place below tests/."""
    place = path.relative_to(Path(__file__).parent).as_posix()
    if any(fnmatch(place, pattern) for pattern in SYSTEM):
        return "system"
    return "integration" if any(fnmatch(place, pattern) for pattern in INTEGRATION) else "unit"


def pytest_configure():
    torch.set_num_threads(1)  # two workers share two cores


def pytest_collection_modifyitems(items: list[pytest.Item]):
    for item in items:
        item.add_marker(layer_of(item.path))
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    items.sort(key=lambda item: LAYERS.index(layer_of(item.path)))  # what fails soon comes first


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk small enough to fill."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a tmpfs: {error}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)

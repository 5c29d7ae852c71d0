"""Tests in three layers, each from the same random state and on one thread."""

import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

# What is in neither is a unit test: one part of hyla, in this process, in a second. Single tests of
# another layer than their file's are marked with it.
SYSTEM = (  # what users see, with a browser, Slurm, notebooks or a fresh environment
    *("docs/*", "explorer/browser/*", "explorer/test_explorer_load.py"),
    *("lab/plan/test_slurm.py", "test_packaging.py"),
)
INTEGRATION = (  # several parts together, other processes, compilers, other people's models
    *("attention/*_host.py", "nn/test_compile.py"),
    *("latents/test_huggingface_codes.py", "latents/test_probing.py"),
    *("training/population/*", "training/language/*", "training/run/test_run_states.py"),
    *("training/run/test_file_checkpoints.py", "training/test_both_kinds.py"),
    *("benchmarks/*", "commands/*", "explorer/*", "figures/*", "gpu/*", "integrations/*", "lab/*"),
    *("results/test_origins.py", "results/test_tables.py"),
    *("test_doctor.py", "test_gpu_tests.py", "test_import.py", "test_plugins.py", "test_shapes.py"),
)
LAYERS = ("unit", "integration", "system")


def layer_of(item: pytest.Item) -> str:
    """The layer of a test: that it is marked with, or that of its file, by its place here."""
    if own := [layer for layer in LAYERS if item.get_closest_marker(layer)]:
        return own[0]
    place = item.path.relative_to(Path(__file__).parent).as_posix()
    if any(fnmatch(place, pattern) for pattern in SYSTEM):
        return "system"
    return "integration" if any(fnmatch(place, pattern) for pattern in INTEGRATION) else "unit"


def pytest_configure():
    torch.set_num_threads(1)  # two workers share two cores


def pytest_collection_modifyitems(items: list[pytest.Item]):
    for item in items:
        item.add_marker(layer_of(item))
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    items.sort(key=lambda item: LAYERS.index(layer_of(item)))  # what fails soon comes first


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

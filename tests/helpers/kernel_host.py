"""Builds kernels for the CPU, in place of NVRTC, so that their arithmetic is tested without a GPU.

Everything but the compiler and the matrix instructions is the code that runs on a GPU.
"""

import ctypes
import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from hyla.attention.kernels import output_stage
from hyla.attention.kernels.formula import read_sources

HERE = Path(__file__).parent
KEPT_SECONDS = 24 * 60 * 60

needs_host_build = pytest.mark.skipif(
    shutil.which("g++") is None or not sys.platform.startswith("linux"),
    reason="the host build of the kernel needs g++ and ucontext (Linux)",
)


def on_the_host(monkeypatch, builds, *kernels):
    """Let `kernels` take tensors on the CPU, and what becomes of their outputs too."""
    empty = torch.empty

    def poisoned(*shape, **like):  # what the kernel forgets to write must not look like a result
        fresh = empty(*shape, **like)
        return fresh.fill_(float("nan")) if fresh.is_floating_point() else fresh

    for module in (*kernels, output_stage):
        monkeypatch.setattr(module, "load_kernel", builds.load_kernel)
    for module in kernels:
        monkeypatch.setattr(module, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(torch, "empty", poisoned)


class HostBuilds:
    """Compiles a kernel with g++, once for all processes that build in the same folder."""

    def __init__(self, folder: Path, hardware: dict[str, Path] | None = None):
        """`hardware` are more sources that a CPU has something else for, in a file."""
        self.folder = folder
        ours = {"tensor_core.cuh": "tensor_core_host.h", "cluster.cuh": "cluster_host.h"}
        self.hardware = {read_sources(name): HERE / host for name, host in ours.items()}
        self.hardware |= hardware or {}
        self.kernels = {}

    def load_kernel(self, source, name, macros, device):
        key = (source, name, tuple(sorted(macros.items())))
        if key not in self.kernels:
            for theirs, ours in self.hardware.items():
                source = source.replace(theirs, ours.read_text(encoding="utf-8"))
            definitions = {**macros, "ENTRY": name}
            if "struct Memory" in source:
                definitions["SHARED_STRUCT"] = "Memory"
            library = self.folder / f"{digest_of(source, definitions)}.so"
            if library.exists():
                library.touch()  # still in use
            else:
                compile_for_host(source, definitions, library)
            self.kernels[key] = HostKernel(ctypes.CDLL(str(library)))
        return self.kernels[key]


COMPILER = ("g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas")
HEADER = HERE / "kernel_host.h"


@functools.cache
def what_all_builds_share() -> str:
    version = subprocess.run([COMPILER[0], "--version"], check=True, capture_output=True, text=True)
    headers = [path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.h"))]
    return repr((version.stdout, COMPILER, headers))


def digest_of(source: str, definitions: Mapping[str, int | str]) -> str:
    of = repr((what_all_builds_share(), source, sorted(definitions.items())))
    return hashlib.sha256(of.encode()).hexdigest()


def compile_for_host(source: str, definitions: Mapping[str, int | str], library: Path) -> None:
    """Compile `source` to `library`, which appears whole."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        kernel, built = Path(folder) / "kernel.cu", Path(folder) / "kernel.so"
        kernel.write_text(source, encoding="utf-8")
        subprocess.run(
            [
                *COMPILER,
                "-D_FORTIFY_SOURCE=0",  # longjmp between stacks is what we want
                *(f"-D{name}={value}" for name, value in definitions.items()),
                f'-DKERNEL_SOURCE="{kernel}"',
                *("-x", "c++", str(HEADER), "-o", str(built)),
            ],
            check=True,
        )
        built.replace(library)


def kept_builds() -> Path:
    """Return the folder whose builds serve all tests, also later ones; what lay idle goes."""
    folder = HERE.parents[1] / ".cache/kernel_host"
    folder.mkdir(parents=True, exist_ok=True)
    for library in folder.glob("*.so"):
        with suppress(FileNotFoundError):  # another process removes it, too
            if time.time() - library.stat().st_mtime > KEPT_SECONDS:
                library.unlink()
    return folder


class HostKernel:
    def __init__(self, library):
        self.library = library

    def launch(self, blocks, threads, arguments, shared_bytes=0):
        if hasattr(self.library, "shared_bytes"):
            self.library.shared_bytes.restype = ctypes.c_size_t
            assert shared_bytes == self.library.shared_bytes(), "host and kernel disagree"
        size = ctypes.c_size_t(shared_bytes)
        self.library.launch(blocks, threads, ctypes.byref(arguments), size)

"""Builds kernels for the CPU, in place of NVRTC, so that their arithmetic is tested without a GPU.

Everything but the compiler and the matrix instructions is the code that runs on a GPU.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hyla.attention.kernels import output_stage
from hyla.attention.kernels.cpu import compiler, small_head
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
        if fresh.is_floating_point():
            fresh.detach().fill_(float("nan"))
        return fresh

    for module in (*kernels, output_stage):
        monkeypatch.setattr(module, "load_kernel", builds.load_kernel)
    for module in kernels:
        monkeypatch.setattr(module, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(torch, "empty", poisoned)


class HostBuilds:
    """Compiles a kernel with g++, once for all processes that build in the same folder."""

    flags: tuple[str, ...] = ()

    def __init__(self, folder: Path, hardware: dict[str, Path] | None = None):
        """`hardware` are more sources that a CPU has something else for, in a file."""
        self.folder = folder
        names = ("tensor_core", "warpgroup", "cluster")
        self.hardware = {read_sources(f"{name}.cuh"): HERE / f"{name}_host.h" for name in names}
        self.hardware |= hardware or {}
        self.kernels = {}

    def load_kernel(self, source, name, macros, device):
        key = (source, name, tuple(sorted(macros.items())))
        if key not in self.kernels:
            for theirs, ours in self.hardware.items():
                source = source.replace(theirs, ours.read_text(encoding="utf-8"))
            build = Build(source, {**macros, "ENTRY": name}, self.flags, self.folder)
            try:
                os.utime(build.library)  # still in use
            except FileNotFoundError:
                build.compile()
            self.kernels[key] = self.opened(build)
        return self.kernels[key]

    def opened(self, build: "Build") -> "HostKernel":
        return HostKernel(ctypes.CDLL(str(build.library)))


@dataclass(frozen=True)
class Build:
    source: str
    macros: Mapping[str, int | str]
    flags: tuple[str, ...]
    folder: Path

    @property
    def library(self) -> Path:
        of = (what_all_builds_share(), self.source, sorted(self.macros.items()), self.flags)
        return self.folder / f"{hashlib.sha256(repr(of).encode()).hexdigest()}.so"

    def compile(self) -> None:
        """Make the library, which appears whole."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            built = self.compile_in(Path(folder))
            built.replace(self.library)

    def compile_in(self, folder: Path, *more: str) -> Path:
        """Compile to a library in `folder`, beside the source as it was compiled."""
        kernel, built = folder / "kernel.cu", folder / "kernel.so"
        kernel.write_text(self.source, encoding="utf-8")
        macros = {**self.macros, "KERNEL_SOURCE": f'"{kernel}"'}
        if "struct Memory" in self.source:
            macros["SHARED_STRUCT"] = "Memory"
        subprocess.run(
            [
                *COMPILER,
                "-D_FORTIFY_SOURCE=0",  # longjmp between stacks is what we want
                *self.flags,
                *more,
                *(f"-D{name}={value}" for name, value in macros.items()),
                *("-x", "c++", str(HEADER), "-o", str(built)),
                *("-lm", "-lc", "-lgcc"),
            ],
            check=True,
        )
        return built


COMPILER = ("g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas")
HEADER = HERE / "kernel_host.h"


@functools.cache
def what_all_builds_share() -> str:
    version = subprocess.run([COMPILER[0], "--version"], check=True, capture_output=True, text=True)
    headers = [path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.h"))]
    return repr((version.stdout, COMPILER, headers))


def kept_builds() -> Path:
    """Return the folder whose builds serve all tests, also later ones; what lay idle goes."""
    folder = HERE.parents[1] / ".cache/kernel_host"
    folder.mkdir(parents=True, exist_ok=True)
    for library in (*folder.glob("*.so"), *folder.glob("hyla/*.so")):  # and the CPU's own kernel
        with suppress(FileNotFoundError):  # another process removes it, too
            if time.time() - library.stat().st_mtime > KEPT_SECONDS:
                library.unlink()
    return folder


def forget_libraries() -> None:
    """Let the kernel on a CPU look for its compiler and its libraries as a new process does."""
    for known in (
        *(compiler._why_failing, compiler._load, compiler._compiler, compiler._machine),
        small_head._library,
    ):
        known.cache_clear()


class HostKernel:
    def __init__(self, library):
        self.library = library

    def launch(self, blocks, threads, arguments, shared_bytes=0):
        if hasattr(self.library, "shared_bytes"):
            self.library.shared_bytes.restype = ctypes.c_size_t
            assert shared_bytes == self.library.shared_bytes(), "host and kernel disagree"
        size = ctypes.c_size_t(shared_bytes)
        self.library.launch(blocks, threads, ctypes.byref(arguments), size)

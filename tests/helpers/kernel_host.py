"""Builds kernels for the CPU, in place of NVRTC, so that their arithmetic is tested without a GPU.

Everything but the compiler and the matrix instructions is the code that runs on a GPU.
"""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hyla.attention.kernels import output_stage
from hyla.attention.kernels.formula import read_sources

HERE = Path(__file__).parent

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
    """Compiles a kernel with g++, each set of macros once."""

    def __init__(self, folder: Path, hardware: dict[str, Path] | None = None):
        """`hardware` are more sources that a CPU has something else for, in a file."""
        self.folder = folder
        ours = {"tensor_core.cuh": "tensor_core_host.h", "cluster.cuh": "cluster_host.h"}
        self.hardware = {read_sources(name): HERE / host for name, host in ours.items()}
        self.hardware |= hardware or {}
        self.kernels = {}

    def load_kernel(self, source, name, macros, device):
        key = (name, *sorted(macros.items()))
        if key not in self.kernels:
            for theirs, ours in self.hardware.items():
                source = source.replace(theirs, ours.read_text(encoding="utf-8"))
            kernel = self.folder / f"kernel{len(self.kernels)}.cu"
            kernel.write_text(source, encoding="utf-8")
            definitions = {**macros, "ENTRY": name, "KERNEL_SOURCE": f'"{kernel}"'}
            if "struct Memory" in source:
                definitions["SHARED_STRUCT"] = "Memory"
            self.kernels[key] = self.compile(kernel.with_suffix(".so"), definitions)
        return self.kernels[key]

    def compile(self, library, definitions):
        self.run_compiler(library, definitions)
        return HostKernel(ctypes.CDLL(str(library)))

    def run_compiler(self, library, definitions, *more):
        subprocess.run(
            [
                *("g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"),
                "-D_FORTIFY_SOURCE=0",  # longjmp between stacks is what we want
                *more,
                *(f"-D{name}={value}" for name, value in definitions.items()),
                *("-x", "c++", str(HERE / "kernel_host.h"), "-o", str(library)),
                *("-lm", "-lc", "-lgcc"),
            ],
            check=True,
        )


class HostKernel:
    def __init__(self, library):
        self.library = library

    def launch(self, blocks, threads, arguments, shared_bytes=0):
        if hasattr(self.library, "shared_bytes"):
            self.library.shared_bytes.restype = ctypes.c_size_t
            assert shared_bytes == self.library.shared_bytes(), "host and kernel disagree"
        size = ctypes.c_size_t(shared_bytes)
        self.library.launch(blocks, threads, ctypes.byref(arguments), size)

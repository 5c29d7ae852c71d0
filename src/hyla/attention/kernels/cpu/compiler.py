"""C++ compiled for this very CPU when it is first asked for, and kept for later processes."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

# Sums keep their order and NaN its meaning: nothing of -ffast-math that would change them.
_OPTIONS = (
    *("-std=c++17", "-O3", "-shared", "-fPIC", "-fopenmp"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native",
)


class CompilerError(RuntimeError):
    """The compiler refused; the message carries its log."""


@torch.compiler.assume_constant_result
def why_unavailable() -> str | None:
    """Say why nothing can be compiled on this machine, or return None if it can."""
    return _why_unavailable()


@functools.cache
def _why_unavailable() -> str | None:
    if sys.platform != "linux" or _compiler() is None:
        return "it needs Linux and a C++ compiler (g++)"
    try:
        load_library("typedef float Four __attribute__((vector_size(16)));", {})
    except CompilerError as error:
        return str(error)
    return None


def load_library(source: str, macros: Mapping[str, int]) -> ctypes.CDLL:
    """Return what `source` compiles to with `macros`."""
    return _load(source, tuple(sorted(macros.items())))


@functools.cache
def _load(source: str, macros: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    options = (*_OPTIONS, *(f"-D{name}={value}" for name, value in macros))
    of = repr((source, options, _machine()))
    kept = _folder() / f"{hashlib.sha256(of.encode()).hexdigest()}.so"
    with suppress(OSError):
        if kept.exists():
            return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "kernel.so"
        _compile(source, options, built)
        with suppress(OSError):  # a full or read-only disk costs time alone
            kept.parent.mkdir(parents=True, exist_ok=True)
            beside = kept.with_name(f".{kept.name}.tmp-{os.getpid()}")
            shutil.copyfile(built, beside)
            beside.replace(kept)  # it appears whole
        return ctypes.CDLL(str(built))


def _compile(source: str, options: tuple[str, ...], built: Path) -> None:
    command = [_compiler() or "c++", *options, "-x", "c++", "-", "-o", str(built)]
    done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
    if done.returncode:
        raise CompilerError(f"{' '.join(command)} failed:\n{done.stderr}")


def _folder() -> Path:
    """Return where torch.compile was told to keep its code, or else the user's own cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or user) / "hyla"


@functools.cache
def _compiler() -> str | None:
    names = (os.environ.get("CXX"), "g++", "c++", "clang++")
    return next((name for name in names if name and shutil.which(name)), None)


@functools.cache
def _machine() -> str:
    """Return what code made elsewhere may not share: the compiler, and what the CPU can do."""
    version = subprocess.run(
        [_compiler() or "c++", "--version"], text=True, capture_output=True, check=False
    )
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return version.stdout + line
    return version.stdout + platform.platform()

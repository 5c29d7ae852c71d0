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
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from hyla._files import write_atomically
from hyla.attention.kernels.formula import read_sources

# Sums keep their order and NaN its meaning: nothing of -ffast-math that would change them.
_OPTIONS = (
    *("-std=c++17", "-O3", "-shared", "-fPIC", "-fopenmp"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native",
)
_LOG_SHOWN = 2000  # characters: the first errors of many

# All that machine.h offers, which asks more of a compiler than the rest of a kernel does.
_PROBE = """
extern "C" void probe(float *x, int threads) {
    share_out(LANES, threads, [&](long from, long to) {
        Vector vectors[LANES] = {}, y = each(read(x), exponential);
        for (long i = from; i < to; ++i) vectors[i] = only(y > 0.f, y);
        add_sums(x, vectors, LANES);
    });
}
"""


class CompilerError(RuntimeError):
    """Nothing could be compiled, or loaded; the message says why, with the compiler's log."""


@torch.compiler.assume_constant_result
def why_unavailable() -> str | None:
    """Say why nothing can be compiled on this machine, or return None if it can."""
    if _compiler() is None:
        return "it needs Linux and a C++ compiler (g++)"
    return _why_failing()


def check_compiler() -> None:
    """Raise a CompilerError if this machine has a compiler that cannot do what is asked of it."""
    reason = _why_failing() if _compiler() else None
    if reason is not None:
        raise CompilerError(reason)


@functools.cache
def _why_failing() -> str | None:
    try:
        load_library(read_sources("machine.h", folder="cpu") + _PROBE, {})
    except CompilerError as error:
        return str(error)
    return None


_LOADING = threading.Lock()  # no two threads compile the same


def load_library(source: str, macros: Mapping[str, int]) -> ctypes.CDLL:
    """Return what `source` compiles to with `macros`; raises a CompilerError."""
    with _LOADING:
        return _load(source, tuple(sorted(macros.items())))


@functools.cache
def _load(source: str, macros: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    options = (*_OPTIONS, *(f"-D{name}={value}" for name, value in macros))
    try:
        kept = _kept(repr((source, options, _machine())))
        return _opened(kept) or _compiled(source, options, kept)
    except OSError as error:  # no temporary folder, a compiler that is no program, ...
        raise CompilerError(f"the kernel for this CPU cannot be built: {error}") from error


def _compiled(source: str, options: tuple[str, ...], kept: Path | None) -> ctypes.CDLL:
    """Return a new library, and leave it at `kept` for later processes."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "kernel.so"
        _compile(source, options, built)
        if kept is not None:
            with suppress(OSError):  # a full or read-only disk costs time alone
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(kept, built.read_bytes())
        # Code may be run from there where temporary folders forbid it.
        return _opened(kept) or ctypes.CDLL(str(built))


def _opened(library: Path | None) -> ctypes.CDLL | None:
    """Return a library that lies there whole, or None."""
    with suppress(OSError):
        if library is not None and library.exists():
            return ctypes.CDLL(str(library))
    return None


def _compile(source: str, options: tuple[str, ...], built: Path) -> None:
    command = [_compiler() or "c++", *options, "-x", "c++", "-", "-o", str(built)]
    done = _run(command, source)
    if done.returncode:
        raise CompilerError(f"{' '.join(command)} failed:\n{done.stderr[:_LOG_SHOWN]}")


def _run(command: list[str], source: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=source,
        encoding="utf-8",  # of sources and compilers, whatever the locale
        errors="replace",
        capture_output=True,
        check=False,
    )


def _kept(of: str) -> Path | None:
    """Return where the library for `of` lies or would lie, or None for a user without a home.

    That is below torch.compile's own folder, if it was told one or has compiled here, or else in
    the user's cache.
    """
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(chosen) if chosen else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "hyla" / f"{hashlib.sha256(of.encode()).hexdigest()}.so"


@functools.cache
def _compiler() -> str | None:
    names = (os.environ.get("CXX"), "g++", "c++", "clang++") if sys.platform == "linux" else ()
    return next((name for name in names if name and shutil.which(name)), None)


@functools.cache
def _machine() -> str:
    """Return what code made elsewhere may not share: the compiler, and what the CPU can do."""
    compiler = _compiler() or "c++"
    made_by = f"{shutil.which(compiler)}\n{_run([compiler, '--version']).stdout}"
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return made_by + line
    return made_by + platform.platform()

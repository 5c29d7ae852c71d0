"""CUDA C++ compiled and launched at run time: NVRTC and the CUDA driver through ctypes.

Nothing is loaded before the first kernel is asked for, so importing this needs neither a GPU nor
CUDA. A launch goes to torch's current stream and neither allocates nor waits, so it can be
captured in a CUDA graph once the kernel has been compiled (any call before the capture does it).
"""

import ctypes
import functools
import hashlib
import os
import re
import site
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from hyla._files import write_atomically

_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute of the driver
_DIGEST = 32  # bytes of the SHA-256 behind a kernel that is kept


class CudaError(RuntimeError):
    """The compiler or the driver refused; the message carries its log."""


class Binary:
    """A compiled kernel, ready on one device."""

    def __init__(self, cubin: bytes, name: str, device_index: int):
        """Load `cubin` into the primary context of the device, the one torch uses."""
        self._driver = _driver()
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        _check(self._driver.cuDeviceGet(ctypes.byref(device), device_index))
        _check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            _check(self._driver.cuModuleLoadData(ctypes.byref(module), cubin))
            _check(
                self._driver.cuModuleGetFunction(
                    ctypes.byref(self._function), module, name.encode()
                )
            )
        finally:
            _check(self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
        self._device_index = device_index
        self._shared_bytes = 48 * 1024  # what a kernel gets without asking

    def launch(
        self, blocks: int, threads: int, arguments: ctypes.Structure, shared_bytes: int = 0
    ) -> None:
        """Run `blocks` × `threads` on torch's current stream; the kernel takes one struct.

        `shared_bytes` is the dynamic shared memory of a block.
        """
        stream = torch.cuda.current_stream(self._device_index).cuda_stream
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        # The calling thread may have no context yet (a fresh autograd thread), or another device's.
        _check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            if shared_bytes > self._shared_bytes:
                _check(
                    self._driver.cuFuncSetAttribute(
                        self._function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes
                    )
                )
                self._shared_bytes = shared_bytes
            grid, block = (blocks, 1, 1), (threads, 1, 1)
            _check(
                self._driver.cuLaunchKernel(
                    self._function, *grid, *block, shared_bytes, stream, parameters, None
                )
            )
        finally:
            _check(self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))


def load_kernel(source: str, name: str, macros: Mapping[str, int], device: torch.device) -> Binary:
    """Return kernel `name` of `source` compiled with `macros` for `device`, compiling it once.

    Threads may compile different kernels at the same time.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    return _load(source, name, tuple(sorted(macros.items())), index)


@functools.cache
def _load(source: str, name: str, macros: tuple[tuple[str, int], ...], device_index: int) -> Binary:
    major, minor = torch.cuda.get_device_capability(device_index)
    # "a": code for this very generation, with instructions that no other has (warpgroup.cuh).
    chip = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    return Binary(kept_cubin(source, dict(macros), chip), name, device_index)


def kept_cubin(source: str, macros: Mapping[str, int], architecture: str) -> bytes:
    """Compile as `compile_cubin`, or return what an earlier process compiled.

    Kernels are kept below torch.compile's own folder (TORCHINDUCTOR_CACHE_DIR), if it was told one
    or has compiled in this process.
    """
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder is None:
        return compile_cubin(source, macros, architecture)
    compiler = (ctypes.c_int(), ctypes.c_int())
    _nvrtc().nvrtcVersion(*map(ctypes.byref, compiler))
    options = _options(macros, architecture)
    of = repr((source, sorted(options), [part.value for part in compiler]))
    path = Path(folder) / "hyla" / f"{hashlib.sha256(of.encode()).hexdigest()}.cubin"
    with suppress(OSError):
        kept = path.read_bytes()
        cubin, digest = kept[:-_DIGEST], kept[-_DIGEST:]
        # The driver is not told a length: it would fail on a torn file at best.
        if hashlib.sha256(cubin).digest() == digest:
            return cubin
    cubin = compile_cubin(source, macros, architecture)
    with suppress(OSError):  # a full or read-only disk costs time alone
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, cubin + hashlib.sha256(cubin).digest())
    return cubin


def compile_cubin(source: str, macros: Mapping[str, int], architecture: str) -> bytes:
    """Compile `source` to machine code for `architecture` (``"sm_90"``)."""
    nvrtc, options = _nvrtc(), _options(macros, architecture)
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
    )
    if status != 0:
        raise CudaError(f"nvrtcCreateProgram failed with {_nvrtc_error(nvrtc, status)}")
    try:
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
        if status != 0:
            raise CudaError(
                f"NVRTC failed with {_nvrtc_error(nvrtc, status)}, options {' '.join(options)}:\n"
                + _nvrtc_log(nvrtc, program)
            )
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _options(macros: Mapping[str, int], architecture: str) -> list[str]:
    return [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        *(f"--define-macro={key}={value}" for key, value in macros.items()),
    ]


RESERVED = 1024
"""Bytes of shared memory that the driver keeps in each block."""


def capability(device: torch.device) -> tuple[int, int]:
    """Return a GPU's compute capability; elsewhere, where the host build runs, a Hopper's."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def shared_memory(device: torch.device) -> int:
    """Return the bytes that a block may have; elsewhere, where the host build runs, a Hopper's."""
    if device.type != "cuda":
        return 227 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def multiprocessors(device: torch.device) -> int:
    """Return how many there are; elsewhere, where the host build runs, few."""
    if device.type != "cuda":
        return 6  # so that some blocks have several pieces, and some pieces several blocks
    return torch.cuda.get_device_properties(device).multi_processor_count


@torch.compiler.assume_constant_result
def why_unavailable() -> str | None:
    """Say why no kernel can be compiled on this machine, or return None if it can."""
    return _why_unavailable()


@functools.cache
def _why_unavailable() -> str | None:
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        _driver()
        _nvrtc()
    except CudaError as error:
        return str(error)
    return None


# ------------------------------------------------------------------ the two shared libraries


@functools.cache
def _driver() -> ctypes.CDLL:
    driver = _first_library(["nvcuda.dll"] if sys.platform == "win32" else ["libcuda.so.1"])
    if driver is None:
        raise CudaError("the CUDA driver library (libcuda) was not found: install NVIDIA's driver")
    # Handles are pointers: without argument types, ctypes would cut them to 32 bits.
    unsigned, pointer = ctypes.c_uint, ctypes.c_void_p
    driver.cuCtxPushCurrent_v2.argtypes = [pointer]
    driver.cuModuleLoadData.argtypes = [pointer, ctypes.c_char_p]
    driver.cuModuleGetFunction.argtypes = [pointer, pointer, ctypes.c_char_p]
    driver.cuFuncSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    driver.cuLaunchKernel.argtypes = [pointer, *[unsigned] * 7, pointer, pointer, pointer]
    _check_with(driver, driver.cuInit(0))
    return driver


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    beside_torch = _nvrtc_beside_torch()
    for path in beside_torch:  # it looks for this by name alone, where no wheel lies
        _first_library([str(p) for p in Path(path).parent.glob("libnvrtc-builtins.so*")])
    library = _first_library([*beside_torch, *_nvrtc_of_the_system()])
    if library is None:
        raise CudaError(
            "NVRTC (libnvrtc), which compiles the fused kernels, was not found: it comes with "
            "PyTorch's CUDA wheels and with the CUDA toolkit"
        )
    pointer = ctypes.c_void_p
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    library.nvrtcCompileProgram.argtypes = [pointer, ctypes.c_int, pointer]
    for name in ("GetProgramLogSize", "GetProgramLog", "GetCUBINSize", "GetCUBIN"):
        getattr(library, f"nvrtc{name}").argtypes = [pointer, pointer]
    return library


def _first_library(names: list[str]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _nvrtc_beside_torch() -> list[str]:
    """Return the NVRTC that torch brought, its own CUDA version first: no second copy is loaded."""
    torch_folder = Path(torch.__file__).parent
    patterns = ("nvrtc64_*.dll",) if sys.platform == "win32" else ("libnvrtc*.so*",)
    folders = [torch_folder / "lib"]
    for packages in {torch_folder.parent, *map(Path, site.getsitepackages())}:
        folders += sorted(packages.glob("nvidia/*/lib")) + sorted(packages.glob("nvidia/*/bin"))
    found = [str(p) for f in folders for pattern in patterns for p in sorted(f.glob(pattern))]
    # CUDA 13's wheel has a second build of it, "alt".
    found = [path for path in found if not {"builtins", "alt"} & set(_words(path))]
    major = f"so.{_cuda_major()}"
    return sorted(found, key=lambda path: not path.endswith(major))


def _words(path: str) -> list[str]:
    return re.split(r"[.-]", os.path.basename(path))


def _nvrtc_of_the_system() -> list[str]:
    if sys.platform == "win32":
        return [f"nvrtc64_{_cuda_major()}0_0.dll"]
    named = [f"libnvrtc.so.{_cuda_major()}", "libnvrtc.so"]
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    return [*named, *(f"{home}/lib64/libnvrtc.so" for home in homes if home)]


def _cuda_major() -> str:
    return (torch.version.cuda or "").split(".")[0]


def _check(status: int) -> None:
    if status != 0:
        _check_with(_driver(), status)


def _check_with(driver: ctypes.CDLL, status: int) -> None:
    if status != 0:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        raise CudaError(f"CUDA driver error {status}: {(text.value or b'unknown').decode()}")


def _nvrtc_error(nvrtc: ctypes.CDLL, status: int) -> str:
    return nvrtc.nvrtcGetErrorString(status).decode()


def _nvrtc_log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode()

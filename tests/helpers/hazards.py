"""Looks for what goes wrong between threads: the host build with a look at every access.

What NVIDIA's compute-sanitizer finds on a GPU as racecheck, initcheck and memcheck; `hazards.cpp`
says how. Beside that a kernel runs in any order of its threads.
"""

import ctypes
import functools
import gc
import subprocess
import tempfile
from pathlib import Path

import torch

from kernel_host import HERE, Build, HostBuilds, HostKernel

KINDS = {
    0: "two writes that nothing orders",
    1: "a write before a read is over",
    2: "a read before a write is over",
    3: "a read of what nobody has written",
    4: "an access outside",
    5: "a product, or a read in bulk, of what was not published",
}


class Hazard(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("kind", "first_thread", "second_thread", "block")),
        *((name, ctypes.c_void_p) for name in ("first", "second")),
        ("at", ctypes.c_longlong),
    )


@functools.cache
def checker() -> ctypes.CDLL:
    """Return what the kernels of this process call into: the first that is loaded, for all."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "hazards.so"
        compiler = ["g++", "-std=c++17", "-O3", "-shared", "-fPIC"]
        subprocess.run([*compiler, str(HERE / "hazards.cpp"), "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded.hazards_found.restype = ctypes.POINTER(Hazard)
    loaded.hazards_allow.argtypes = [ctypes.c_void_p] * 2
    return loaded


class CheckedBuilds(HostBuilds):
    """Compiles kernels so that a launch raises an AssertionError if it finds hazards."""

    order = 0  # of threads, in the launches to come; see kernel_host.h
    # Without the library that these calls are for: hazards.cpp has them.
    flags = (
        *("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"),
        *("-nodefaultlibs", "-DCHECKED"),
    )

    def opened(self, build: Build) -> HostKernel:
        checker()
        return CheckedKernel(self, build)


class CheckedKernel(HostKernel):
    def __init__(self, builds: CheckedBuilds, build: Build):
        super().__init__(ctypes.CDLL(str(build.library)))
        self.builds, self.build = builds, build

    def launch(self, blocks, threads, arguments, shared_bytes=0):
        look = checker()
        look.hazards_forget()
        for begin, end in _tensors_of(arguments):
            look.hazards_allow(begin, end)
        ctypes.c_uint.in_dll(self.library, "order").value = self.builds.order
        super().launch(blocks, threads, arguments, shared_bytes)
        found = [look.hazards_found(i).contents for i in range(look.hazards_count())]
        if found:
            raise AssertionError("\n".join(map(self._describe, found)))

    def _describe(self, hazard: Hazard) -> str:
        where = "tensors" if hazard.at < 0 else f"byte {hazard.at} of shared memory"
        with tempfile.TemporaryDirectory() as folder:
            # Of a build that remembers its lines; in DWARF 5, addr2line mistakes files.
            built = self.build.compile_in(Path(folder), "-gdwarf-4")
            first, second = (self._lines(built, x) for x in (hazard.first, hazard.second))
        return (
            f"{self.build.macros['ENTRY']} {self.build.library.name}, {KINDS[hazard.kind]}: "
            f"threads {hazard.first_thread} and {hazard.second_thread} of cluster {hazard.block}, "
            f"{where}\n{first}and\n{second}"
        )

    def _lines(self, built: Path, address: int) -> str:
        """Return the line of an access, and those that called it."""
        self.library.first_byte.restype = ctypes.c_void_p
        offset = address - self.library.first_byte() - 1  # in the call before
        command = ["addr2line", "-ifC", "-e", str(built), hex(offset)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines = answer.splitlines()
        told = ""
        for function, place in zip(lines[::2], lines[1::2], strict=True):
            file, _, line = place.partition(" ")[0].rpartition(":")
            number = int(line) if line.isdigit() else 0
            source = Path(file).read_text(encoding="utf-8").splitlines() if number else [""]
            told += f"    {function}: {source[max(0, number - 1)].strip()}\n"
        return told


def _tensors_of(arguments: ctypes.Structure) -> list[tuple[int, int]]:
    """Find the memory of living tensors that some word of the arguments points into."""
    words = set(memoryview(bytes(arguments)).cast("Q"))
    found = set()
    for x in gc.get_objects():
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            continue
        try:
            storage = x.untyped_storage()
            begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        except RuntimeError:  # a wrapper of another one
            continue
        if any(begin <= word < end for word in words):
            found.add((begin, end))
    return sorted(found)

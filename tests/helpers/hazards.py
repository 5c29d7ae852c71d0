"""Looks for what goes wrong between threads: the host build with a look at every access.

What NVIDIA's compute-sanitizer finds on a GPU as racecheck, initcheck and memcheck; `hazards.cpp`
says how. Beside that a kernel runs in any order of its threads.
"""

import ctypes
import gc
import subprocess
from pathlib import Path

import torch

from kernel_host import HERE, HostBuilds, HostKernel

KINDS = {
    0: "two writes that nothing orders",
    1: "a write before a read is over",
    2: "a read before a write is over",
    3: "a read of what nobody has written",
    4: "an access outside",
    5: "a product of what was not published",
}


class Hazard(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("kind", "first_thread", "second_thread", "block")),
        *((name, ctypes.c_void_p) for name in ("first", "second")),
        ("at", ctypes.c_longlong),
    )


class CheckedBuilds(HostBuilds):
    """Compiles kernels so that a launch raises an AssertionError if it finds hazards."""

    def __init__(self, folder: Path, hardware: dict[str, Path] | None = None):
        super().__init__(folder, hardware)
        self.order = 0  # of threads, in the launches to come; see kernel_host.h
        checker = folder / "hazards.so"
        compiler = ["g++", "-std=c++17", "-O3", "-shared", "-fPIC"]
        subprocess.run([*compiler, str(HERE / "hazards.cpp"), "-o", str(checker)], check=True)
        # For all: the kernels call into it.
        self.checker = ctypes.CDLL(str(checker), mode=ctypes.RTLD_GLOBAL)
        self.checker.hazards_found.restype = ctypes.POINTER(Hazard)
        self.checker.hazards_allow.argtypes = [ctypes.c_void_p] * 2

    def compile(self, library: Path, definitions: dict[str, str]) -> HostKernel:
        self.run_compiler(library, definitions, *_INSTRUMENTED)
        return CheckedKernel(self, library, definitions)


# Without the library that these calls are for: hazards.cpp has them.
_INSTRUMENTED = (
    *("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"),
    *("-nodefaultlibs", "-DCHECKED"),
)


class CheckedKernel(HostKernel):
    def __init__(self, builds: CheckedBuilds, path: Path, definitions: dict[str, str]):
        super().__init__(ctypes.CDLL(str(path)))
        self.builds, self.path, self.definitions = builds, path, definitions

    def launch(self, blocks, threads, arguments, shared_bytes=0):
        checker = self.builds.checker
        checker.hazards_forget()
        for begin, end in _tensors_of(arguments):
            checker.hazards_allow(begin, end)
        ctypes.c_uint.in_dll(self.library, "order").value = self.builds.order
        super().launch(blocks, threads, arguments, shared_bytes)
        found = [checker.hazards_found(i).contents for i in range(checker.hazards_count())]
        if found:
            raise AssertionError("\n".join(map(self._describe, found)))

    def _describe(self, hazard: Hazard) -> str:
        where = "tensors" if hazard.at < 0 else f"byte {hazard.at} of shared memory"
        return (
            f"{self.definitions['ENTRY']} {self.path.name}, {KINDS[hazard.kind]}: "
            f"threads {hazard.first_thread} and {hazard.second_thread} of cluster {hazard.block}, "
            f"{where}\n{self._lines(hazard.first)}and\n{self._lines(hazard.second)}"
        )

    def _lines(self, address: int) -> str:
        """Name the line of an access, and who called it: of a build that remembers them."""
        with_lines = self.path.with_suffix(".lines.so")
        if not with_lines.exists():
            self.builds.run_compiler(with_lines, self.definitions, *_INSTRUMENTED, "-g")
        self.library.first_byte.restype = ctypes.c_void_p
        offset = address - self.library.first_byte() - 1  # in the call before
        command = ["addr2line", "-ifC", "-e", str(with_lines), hex(offset)]
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

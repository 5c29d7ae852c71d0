"""Kernels are compiled once where code is kept, and every time where it is not."""

from pathlib import Path

import pytest

from hyla.attention.kernels import nvrtc


class Compiler:
    """Stands for NVRTC, which need not be here: counts what it compiles."""

    def __init__(self):
        self.compiled: list[str] = []
        self.version = 13

    def nvrtcVersion(self, major, minor):  # noqa: N802 - NVRTC's own name
        major._obj.value, minor._obj.value = self.version, 0

    def compile_cubin(self, source, macros, architecture) -> bytes:
        self.compiled.append(source)
        return f"{source} {macros} {architecture}".encode()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler()
    monkeypatch.setattr(nvrtc, "_nvrtc", lambda: compiler)
    monkeypatch.setattr(nvrtc, "compile_cubin", compiler.compile_cubin)
    return compiler


def test_a_kernel_is_compiled_once(compiler: Compiler, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    first = nvrtc.kept_cubin("a", {"H": 16}, "sm_90")
    assert nvrtc.kept_cubin("a", {"H": 16}, "sm_90") == first
    assert compiler.compiled == ["a"]


def test_other_macros_chips_and_compilers_are_other_kernels(
    compiler: Compiler, monkeypatch, tmp_path: Path
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    kinds = [({"H": 16}, "sm_90"), ({"H": 8}, "sm_90"), ({"H": 16}, "sm_100")]
    found = {nvrtc.kept_cubin("a", macros, chip) for macros, chip in kinds}
    assert len(found) == len(compiler.compiled) == 3
    compiler.version = 14
    nvrtc.kept_cubin("a", *kinds[0])
    assert len(compiler.compiled) == 4


def test_other_options_are_another_kernel(compiler: Compiler, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    nvrtc.kept_cubin("a", {"H": 16}, "sm_90")
    usual = nvrtc._options
    monkeypatch.setattr(nvrtc, "_options", lambda *of: [*usual(*of), "--use_fast_math"])
    nvrtc.kept_cubin("a", {"H": 16}, "sm_90")
    assert compiler.compiled == ["a", "a"]


@pytest.mark.parametrize("left", [0, 20, 40], ids=["empty", "short", "torn"])
def test_a_damaged_kernel_is_compiled_and_kept_anew(
    compiler: Compiler, monkeypatch, tmp_path: Path, left: int
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    first = nvrtc.kept_cubin("a", {"H": 16}, "sm_90")
    (file,) = tmp_path.rglob("*.cubin")
    file.write_bytes(file.read_bytes()[:left])
    for _ in range(2):
        assert nvrtc.kept_cubin("a", {"H": 16}, "sm_90") == first
    assert compiler.compiled == ["a", "a"]


@pytest.mark.parametrize("place", [None, "file"])
def test_without_a_place_it_is_compiled_each_time(
    compiler: Compiler, monkeypatch, tmp_path: Path, place: str | None
):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    if place is not None:
        (tmp_path / place).write_text("in the way")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / place))
    for _ in range(2):
        assert nvrtc.kept_cubin("a", {}, "sm_90") == b"a {} sm_90"
    assert compiler.compiled == ["a", "a"]

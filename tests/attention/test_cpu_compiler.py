"""What compiles the kernel on a CPU: it keeps what it made, and says why it could make nothing."""

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from hyla.attention import attention
from hyla.attention.kernels.cpu import compiler
from kernel_host import forget_libraries

pytestmark = pytest.mark.skipif(
    compiler.why_unavailable() is not None, reason="the kernel on a CPU needs a C++ compiler"
)
NUMBER = 'extern "C" int number() { return NUMBER; }'


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    forget_libraries()
    yield
    forget_libraries()


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    sources = []
    compile_one = compiler._compile

    def counted(source, *rest):
        sources.append(source)
        compile_one(source, *rest)

    monkeypatch.setattr(compiler, "_compile", counted)
    return sources


def number(value: int = 7) -> int:
    """Compile a library, or find it, as a new process would."""
    compiler._load.cache_clear()
    return compiler.load_library(NUMBER, {"NUMBER": value}).number()


def test_what_was_compiled_is_kept(compiled):
    assert [number(7), number(7), number(8)] == [7, 7, 8]
    assert len(compiled) == 2


def test_a_torn_library_is_compiled_anew(compiled, monkeypatch, tmp_path: Path):
    number()
    (kept,) = tmp_path.rglob("*.so")
    torn = tmp_path / "other" / "hyla" / kept.name
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"\x7fELF, and no more")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
    assert [number(), number()] == [7, 7]
    assert len(compiled) == 2


def test_threads_compile_it_once(compiled):
    threads = [
        threading.Thread(target=compiler.load_library, args=(NUMBER, {"NUMBER": 7}))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


def test_where_nothing_can_be_kept_it_is_compiled_each_time(compiled, tmp_path: Path):
    (tmp_path / "hyla").write_text("in the way")
    assert [number(), number()] == [7, 7]
    assert len(compiled) == 2


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home_keeps_nothing_unless_told_where(compiled, monkeypatch):
    monkeypatch.setattr(Path, "home", no_home)
    assert [number(), number()] == [7, 7]
    assert len(compiled) == 1
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert [number(), number()] == [7, 7]
    assert len(compiled) == 3
    forget_libraries()
    assert compiler.why_unavailable() is None


def test_a_temporary_folder_whose_files_may_not_be_run_does_not_matter(monkeypatch, tmp_path: Path):
    load = ctypes.CDLL

    def only_kept(name: str) -> ctypes.CDLL:
        if not Path(name).is_relative_to(tmp_path):
            raise OSError(f"{name}: failed to map segment from shared object")
        return load(name)

    monkeypatch.setattr(ctypes, "CDLL", only_kept)
    assert number() == 7
    (tmp_path / "hyla").rename(tmp_path / "elsewhere")
    (tmp_path / "hyla").write_text("in the way")
    with pytest.raises(compiler.CompilerError, match=r"cannot be built: .*failed to map"):
        number()


def test_a_locale_of_ascii_does_not_matter():
    program = "from hyla.attention.kernels.cpu import compiler; print(compiler.why_unavailable())"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | ascii_only,
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("None\n", 0), done.stderr


# ------------------------------------------------------------------ why there is none


def assert_unavailable(reason: str) -> None:
    q = torch.randn(1, 3, 2, 4)
    assert reason in (compiler.why_unavailable() or "")
    with pytest.raises(ValueError, match="backend 'fused' cannot compute this") as refused:
        attention(q, q, q, backend="fused")
    assert reason in str(refused.value)
    assert attention(q, q, q).shape == q.shape


def test_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert_unavailable("it needs Linux and a C++ compiler")
    compiler.check_compiler()  # none is no fault


def test_without_a_temporary_folder(monkeypatch):
    def nowhere(*_, **__):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(compiler.tempfile, "TemporaryDirectory", nowhere)
    assert_unavailable("cannot be built: No usable temporary directory")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("#!/bin/sh\necho no such vectors >&2\nexit 1\n", "no such vectors"),
        ("no program at all", "Exec format error"),
    ],
)
def test_a_compiler_that_fails_is_quoted(content, reason, monkeypatch, tmp_path: Path):
    broken = tmp_path / "broken"
    broken.write_text(content)
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert_unavailable(reason)
    with pytest.raises(compiler.CompilerError, match=reason):
        compiler.check_compiler()

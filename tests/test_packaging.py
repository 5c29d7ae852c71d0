"""What people install: wheel and sdist are complete, and run in an environment of their own."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from hyla import __version__

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "hyla"


def run(*command: str | Path, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (path,) = built.glob("*.whl")
    return path


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    ignored = {"__pycache__"}
    files = {
        f"hyla/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and not ignored & set(path.parts)
    }
    assert files <= packed
    for kind in (".cu", ".cuh", ".cpp", ".h", ".json", ".yaml", ".typed"):  # beside the modules
        assert any(name.endswith(kind) for name in packed), kind


@pytest.mark.parametrize("folder", ["explorer/page", "explorer/models"])
def test_the_explorer_comes_with_its_page_and_models(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.startswith(f"hyla/{folder}/") for name in archive.namelist())


def test_the_sdist_has_what_one_needs_to_test_and_read(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("tests/test_packaging.py", "docs/index.md", "README.md", "LICENSE", "Makefile"):
        assert needed in names
    assert not any(name.startswith(("runs/", "results/", "site/", ".venv/")) for name in names)


def test_the_wheel_runs_by_itself(wheel, tmp_path):
    """In an environment with this one's libraries but not with this source tree."""
    python = _environment(tmp_path)
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    packages = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    )
    # As a plain path: the .pth files in there, the one of this source tree among them, stay unread.
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    _check_installation(python)


@pytest.mark.slow
def test_the_wheel_installs_with_its_dependencies(wheel, tmp_path):
    python = _environment(tmp_path)
    run(python, "-m", "pip", "install", "-c", ROOT / "constraints.txt", wheel)
    _check_installation(python)
    smoke = ("train", "fuzzy", "--scale", "smoke", "--root", tmp_path / "runs")
    assert "run directory" in run(python.with_name("hyla"), *smoke, cwd=tmp_path)


def _environment(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", folder / "venv")
    return folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"


def _check_installation(python: Path) -> None:
    away = {"cwd": python.parent, "env": {**os.environ, "PYTHONPATH": ""}}
    where = run(python, "-c", "import hyla; print(hyla.__file__)", **away)
    assert str(python.parent.parent) in where
    command = python.with_name("hyla")
    assert "Train models on a task" in re.sub(r"\s+", " ", run(command, "--help", **away))
    assert "All is well." in run(command, "doctor", **away)


def interpreter(version: str) -> Path | None:
    """A Python of that version, on the path or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *pyenv.glob(f"{version}.*/bin/python")]
    for candidate in candidates:
        try:
            shown = subprocess.run([candidate, "-V"], capture_output=True, text=True)
        except OSError:
            continue
        if shown.returncode == 0 and shown.stdout.startswith(f"Python {version}."):
            return Path(candidate)
    return None


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_sources_compile_under_every_supported_python(version, tmp_path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    run(python, "-W", "error", "-m", "compileall", "-q", SOURCE, ROOT / "tests", env=compiled)


def test_supported_pythons_are_the_stated_ones():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = [c.rpartition(" ")[2] for c in project["classifiers"] if ":: Python :: 3." in c]
    assert stated == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={stated[0]}"


def test_the_citation_is_of_this_version_and_names_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()  # what the format requires
    assert citation["version"] == __version__
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors"} <= paper.keys()
    families = [author["family-names"] for author in paper["authors"]]
    assert families == ["Schug", "Kobayashi", "Akram", "Sacramento", "Pascanu"]

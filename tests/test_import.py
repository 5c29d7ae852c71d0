"""What `import hyla` brings along: torch, and none of what is optional or heavy."""

import subprocess
import sys

import pytest

HEAVY = ("transformers", "datasets", "sentencepiece", "pandas", "matplotlib", "sklearn")


def modules_after(statement: str) -> set[str]:
    # Without Triton, which torch itself imports where it is installed.
    code = f"import sys\nsys.modules['triton'] = None\n{statement}\n"
    code += "print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import hyla",
        "import hyla.attention, hyla.nn",
        "import hyla.latents",
        "import hyla.training.population",
    ],
)
def test_import_brings_nothing_heavy(statement):
    loaded = modules_after(statement)
    assert "hyla" in loaded
    assert not loaded & set(HEAVY)


def test_version_is_stated():
    import hyla

    assert hyla.__version__.count(".") == 2


def test_parts_are_there_after_import_hyla():
    lines = ["import hyla, sys"]
    for part in ("attention", "nn", "tasks", "training"):  # none of them imports one after it
        lines += [f"assert 'hyla.{part}' not in sys.modules; assert '{part}' in dir(hyla)"]
        lines += [f"assert hyla.{part}.__name__ == 'hyla.{part}'"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_dir_lists_the_interface_and_nothing_else_is_there():
    import hyla

    assert set(hyla.__all__) <= set(dir(hyla))
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        _ = hyla.atention

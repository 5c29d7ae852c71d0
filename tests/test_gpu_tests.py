"""`tools/gpu_tests.py`, by a few tests that need no GPU: nothing that fails may go unseen."""

import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_tests

TOOL = Path(__file__).parent.parent / "tools/gpu_tests.py"
PASSES = "def test_passes():\n    pass\n"
FAILS = "def test_fails():\n    assert 1 == 2, 'of all numbers'\n"
CRASHES = f"{PASSES}\ndef test_crashes():\n    __import__('os').abort()\n"
HANGS = "def test_hangs():\n    __import__('time').sleep(600)\n"
SKIPPED = "import pytest\n\n@pytest.mark.skip(reason='no GPU')\ndef test_skipped():\n    pass\n"
ALONE = "import pytest\n\n@pytest.mark.alone\ndef test_alone():\n    pass\n"
LONG = (
    "import pytest\n\n@pytest.mark.long\ndef test_long():\n    pass\n\ndef test_too():\n    pass\n"
)
MANY = """
import pytest

@pytest.mark.parametrize("i", range(30))
def test_many(i):
    pass
"""


def run(folder: Path, *options: str, **files: str) -> tuple[int, list[str], str]:
    """Run tests of these files; return the exit code, what was said, by lines, and errors."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone\n    long\n")
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source)
    done = subprocess.run(
        [sys.executable, TOOL, f"--logs={folder / 'logs'}", "--jobs=2", *options, folder],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take seconds to import
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_all_is_well_if_all_pass_in_pieces_of_long_files_and_alone_at_last(tmp_path: Path):
    code, said, _ = run(tmp_path, test_a=ALONE, test_b=MANY)
    assert code == 0
    *together, alone, closing = (line.split(", ")[0] for line in said)
    assert sorted(together) == [f"test_b-{i}: 10 passed" for i in (1, 2, 3)]
    assert (alone, closing) == ("alone: 1 passed", "31 passed")
    assert said[-1] == f"31 passed, 0 failed, 0 skipped; logs in {tmp_path / 'logs'}"


def test_long_tests_come_first_each_in_a_process_of_its_own(tmp_path: Path):
    code, said, _ = run(tmp_path, "--jobs=1", test_a=PASSES, test_b=LONG)
    assert code == 0
    pieces = [line.split(":")[0] for line in said[:3]]
    assert pieces == ["test_b-1", "test_a-1", "test_b-2"]


def test_a_failure_is_one_and_says_why(tmp_path: Path):
    code, said, _ = run(tmp_path, test_a=PASSES, test_b=FAILS, test_c=SKIPPED)
    assert code == 1
    assert said[-1].startswith("1 passed, 1 failed, 1 skipped")
    assert "test_b::test_fails: AssertionError: of all numbers" in said
    assert "of all numbers" in (tmp_path / "logs/test_b-1.log").read_text()


def test_skipped_tests_are_no_success(tmp_path: Path):
    code, said, _ = run(tmp_path, test_a=SKIPPED)
    assert code == 1
    assert said[-3:-1] == ["1 skipped: no GPU", "Nothing was tested"]


def test_a_process_that_crashes_fails_with_all_its_tests(tmp_path: Path):
    code, said, _ = run(tmp_path, test_a=PASSES, test_b=CRASHES)
    assert code == 1
    assert "test_b-1 ended with -6, 2 of its tests without a result" in said
    assert said[-1].startswith("1 passed, 2 failed, 0 skipped")


def test_a_process_that_hangs_is_ended(tmp_path: Path):
    code, said, _ = run(tmp_path, "--seconds=1", test_a=HANGS)
    assert code == 1
    assert "test_a-1 was ended after 1 s, 1 of its tests without a result" in said


def test_what_there_was_no_time_for_is_left_out_and_the_summary_printed(tmp_path: Path):
    code, said, _ = run(tmp_path, "--max-seconds=0", test_a=PASSES, test_b=ALONE)
    assert code == 1
    assert said[:2] == [
        f"{name}: 0 passed, 0 failed, 0 skipped, 1 left out, 0 s" for name in ("test_a-1", "alone")
    ]
    assert said[-1].startswith("0 passed, 0 failed, 0 skipped, 2 left out; logs in")


def test_a_piece_that_is_not_done_in_time_is_left_out_and_no_failure(tmp_path: Path):
    (tmp_path / "test_a.py").write_text(HANGS)
    piece = gpu_tests.Piece("test_a-1", ["test_a.py::test_hangs"])
    end = time.monotonic() + 1
    outcome = gpu_tests.run(piece, tmp_path, tmp_path / "log", 300, end)
    assert str(outcome) == "0 passed, 0 failed, 0 skipped, 1 left out"
    assert outcome.failures == []
    assert time.monotonic() >= end


def test_a_process_that_fails_when_all_is_over_fails(tmp_path: Path):
    aborts = "    import atexit, os\n    atexit.register(os.abort)\n"
    code, said, _ = run(tmp_path, test_a=PASSES + aborts)
    assert code == 1
    assert "test_a-1 ended with -6, 0 of its tests without a result" in said
    assert said[-1].startswith("1 passed, 1 failed, 0 skipped")


def test_a_report_that_was_cut_off_has_no_results(tmp_path: Path):
    """All tests of its process then count as failed, and the other processes are told of."""
    report = tmp_path / "report.xml"
    report.write_text("<testsuites><testsuite><testcase classname='a' name='b'/>")
    assert str(gpu_tests.read_report(report)) == "0 passed, 0 failed, 0 skipped"


def test_a_test_that_fails_twice_is_one(tmp_path: Path):
    torn = (
        "import pytest\n\n@pytest.fixture\ndef torn():\n    yield\n    raise ValueError('torn')\n\n"
    )
    code, said, _ = run(tmp_path, test_a=torn + FAILS.replace("()", "(torn)", 1))
    assert code == 1
    assert "test_a::test_fails: AssertionError: of all numbers" in said
    assert said[-1].startswith("0 passed, 1 failed, 0 skipped")


def test_what_cannot_be_collected_fails(tmp_path: Path):
    code, said, errors = run(tmp_path, test_a=PASSES, test_b="import what_nobody_has\n")
    assert (code, said) == (1, [])
    assert "No module named 'what_nobody_has'" in errors

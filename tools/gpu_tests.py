"""Run the tests that need a GPU, a few at a time: most of their time is compiling, one core each.

    PYTHONPATH=src python tools/gpu_tests.py [--jobs 12] [--logs FOLDER] [--max-seconds N] [TESTS]

Files are cut into pieces, each a process of its own; what one compiles the others need not. Tests
marked `long` come first, each a piece, and those marked `alone` last, by themselves. How a piece
ended is said as soon as it has, and FOLDER keeps a log of each. After N seconds no piece is begun
and those that run are ended: their tests are left out. It succeeds only if some tests passed, none
failed and none was left out.
"""

import argparse
import contextlib
import io
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".cache/gpu_tests"
TESTS_OF_A_PIECE = 12  # few enough that no piece is long, and enough to be worth importing torch
COLUMNS = ("passed", "failed", "skipped")
LEFT_OUT = "left out"


@dataclass
class Collected:
    """A plug-in of pytest that keeps what it has collected."""

    items: list[pytest.Item] = field(default_factory=list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the tests of `session`."""
        self.items = session.items


@dataclass(frozen=True)
class Piece:
    """Tests that share a process."""

    name: str
    tests: list[str]


@dataclass
class Outcome:
    """How many tests ended how, what the failed ones said, and why others were skipped."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        columns = (*COLUMNS, LEFT_OUT) if self.counts[LEFT_OUT] else COLUMNS
        return ", ".join(f"{self.counts[column]} {column}" for column in columns)

    def add(self, other: "Outcome") -> None:
        """Count `other` in."""
        self.counts += other.counts
        self.failures += other.failures
        self.reasons += other.reasons


def collect(paths: list[str]) -> list[pytest.Item]:
    """Return the tests below `paths`, or exit with what pytest says if it cannot collect them."""
    collected, said = Collected(), io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(["--collect-only", *paths], plugins=[collected])
    if status != pytest.ExitCode.OK:
        raise SystemExit(said.getvalue())
    return collected.items


def pieces_of(items: list[pytest.Item]) -> Iterator[Piece]:
    """Cut every file into pieces; neighbours, which often compile alike, go to different ones."""
    tests, number = defaultdict(list), Counter()
    for item in items:
        tests[item.get_closest_marker("long") is None, item.path.stem].append(item.nodeid)
    for (short, file), own in sorted(tests.items()):
        count = -(-len(own) // (TESTS_OF_A_PIECE if short else 1))
        for i in range(count):
            number[file] += 1
            yield Piece(f"{file}-{number[file]}", own[i::count])


def run(piece: Piece, folder: Path, log: Path, seconds: float, end: float) -> Outcome:
    """Run a piece in `folder`; a process that does not end as pytest does counts as a failure.

    Tests that it did not come to count as one each. At `end`, by the clock of `time.monotonic`, all
    of them are left out.
    """
    left = end - time.monotonic()
    left_out = Outcome(Counter({LEFT_OUT: len(piece.tests)}))
    if left <= 0:
        return left_out
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(KEPT / "compiled"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else every piece starts a process for each core
        **os.environ,
    }
    with tempfile.TemporaryDirectory() as reports, log.open("wb") as output:
        report = Path(reports) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", *piece.tests]
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, timeout=min(seconds, left), **streams
            ).returncode
            ending = f"ended with {ended}"
        except subprocess.TimeoutExpired:
            if left < seconds:
                return left_out
            ended, ending = None, f"was ended after {seconds:g} s"
        outcome = read_report(report)
    lost = len(piece.tests) - outcome.counts.total()
    if lost or ended != (pytest.ExitCode.TESTS_FAILED if outcome.failures else pytest.ExitCode.OK):
        outcome.counts["failed"] += max(lost, 1)
        outcome.failures.append(f"{piece.name} {ending}, {lost} of its tests without a result")
    return outcome


def read_report(report: Path) -> Outcome:
    """Read what pytest wrote, if it came to that, and to the end of it.

    A test that fails once more while it is torn down stands there twice.
    """
    outcome, found = Outcome(), {}
    try:
        tests = list(ElementTree.parse(report).iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):
        tests = []
    for test in tests:
        found.setdefault((test.get("classname"), test.get("name")), test)
    for test in found.values():
        failures = [*test.findall("failure"), *test.findall("error")]
        skipped = test.find("skipped")
        ending = "failed" if failures else "passed" if skipped is None else "skipped"
        outcome.counts[ending] += 1
        for failure in failures[:1]:
            place = test.get("classname", "").rpartition(".")[2]
            outcome.failures.append(f"{place}::{test.get('name')}: {failure.get('message')}")
        if skipped is not None:
            outcome.reasons[skipped.get("message", "")] += 1
    return outcome


def run_all(items: list[pytest.Item], jobs: int, logs: Path, seconds: float, end: float) -> Outcome:
    """Run all tests, and say of each piece how it ended."""
    alone = [item.nodeid for item in items if item.get_closest_marker("alone")]
    together = pieces_of([item for item in items if item.nodeid not in alone])
    total = Outcome()

    def run_one(piece: Piece) -> tuple[Piece, Outcome, float]:
        began = time.monotonic()
        outcome = run(piece, items[0].config.rootpath, logs / f"{piece.name}.log", seconds, end)
        return piece, outcome, time.monotonic() - began

    def note(piece: Piece, outcome: Outcome, took: float) -> None:
        print(f"{piece.name}: {outcome}, {took:.0f} s", flush=True)
        total.add(outcome)

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run_one, piece) for piece in together]):
            note(*done.result())
    if alone:
        note(*run_one(Piece("alone", alone)))
    return total


def main() -> int:
    """Run the tests and return the exit code."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", default=[str(ROOT / "tests/gpu")], metavar="TESTS")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--logs", type=Path, default=KEPT / "logs", metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=300, help="that a piece may take")
    parser.add_argument("--max-seconds", type=float, default=math.inf, help="that all may take")
    given = parser.parse_args()
    given.logs.mkdir(parents=True, exist_ok=True)
    end = began + given.max_seconds
    outcome = run_all(collect(given.tests), given.jobs, given.logs, given.seconds, end)
    for failure in outcome.failures:
        print(f"\n{failure}")
    for reason, count in outcome.reasons.items():
        print(f"{count} skipped: {reason}")
    if not outcome.counts["passed"]:
        print("Nothing was tested")
    print(f"{outcome}; logs in {given.logs}")
    incomplete = outcome.counts["failed"] + outcome.counts[LEFT_OUT]
    return 0 if outcome.counts["passed"] and not incomplete else 1


if __name__ == "__main__":
    sys.exit(main())

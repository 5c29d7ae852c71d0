"""The demo claims no more than its seeds show, and leaves a figure and a page that stands alone."""

import math
import re
import sys
from html import unescape
from pathlib import Path

import pytest

from hyla.attention import RECOMMENDED
from hyla.cli import main
from hyla.commands import demo as command
from hyla.commands.shared.exits import USAGE
from hyla.lab import demo
from hyla.lab.demo import MethodResult, verdict


def _result(method: str, *ood: float) -> MethodResult:
    return MethodResult(
        method=method,
        in_distribution=[0.9] * len(ood),
        out_of_distribution=list(ood),
        steps=[1, 2],
        ood_curve=[0.1, 0.2],
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("hyla", "softmax", "linear", "said"),
    [
        (
            (0.8, 0.7),
            (0.6, 0.5),
            (0.4, 0.4),
            "HYLA as recommended is ahead on unseen combinations: ",
        ),
        ((0.8, 0.7), (0.6, 0.5), (0.4, 0.4), "with 2 of 2 seeds"),
        ((0.8, 0.6), (0.7, 0.5), (0.4, 0.4), "with 2 of 2 seeds"),  # each holds out its own
        ((0.8, 0.5), (0.6, 0.5), (0.4, 0.4), "with 1 of 2 seeds"),
        # The other method with the best seed need not be the one with the best mean.
        ((0.8, 0.7), (0.6, 0.5), (0.1, 0.75), "with 1 of 2 seeds"),
        ((0.5, 0.5), (0.6, 0.5), (0.4, 0.4), "does not show"),
        ((0.5, 0.5), (0.5, 0.5), (0.4, 0.4), "does not show"),
        ((0.5, math.nan), (0.4, 0.4), (0.4, 0.4), "does not show"),
        ((0.5, 0.5), (math.nan, math.nan), (0.4, 0.4), "with 2 of 2 seeds"),
    ],
)
def test_verdict_counts_the_seeds_that_show_a_lead(hyla, softmax, linear, said):
    results = [_result(demo.OURS, *hyla), _result("softmax", *softmax), _result("linear", *linear)]
    assert said in verdict(results)


def test_verdict_gives_its_numbers():
    results = [
        _result(demo.OURS, 0.8, 0.6),
        _result("softmax", 0.3, 0.5),
        _result("linear", 0.1, 0.1),
    ]
    assert "0.700 against 0.400 of softmax attention" in verdict(results)


def test_the_picture_says_what_its_lines_bars_and_whiskers_are():
    results = [_result(method, 0.8, 0.6, 0.4) for method in demo.METHODS]
    [[curves, scores]] = demo.figure_of(results).panels
    assert "lines: mean of 3 seeds" in curves.title
    assert "bars: mean of 3 seeds, whiskers: worst to best" in scores.title


def test_demo_leaves_a_figure_and_a_page_that_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(demo, "SCALE", "smoke")
    monkeypatch.setattr(demo, "CHANGES", {})
    runs, out = tmp_path / "runs", tmp_path / "out"
    command = ["demo", "--root", str(runs), "--out", str(out), "--device", "cpu"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for part in (demo.OURS, "softmax", "linear", "R² on fuzzy logic", str(out / "demo.png")):
        assert part in shown
    # Before the end, and of all methods at the same step.
    assert "R² on unseen combinations after 15 of 30 steps: HYLA as recommended " in shown
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "demo.html").read_text()
    assert page.index("class='conclusion'") < page.index("class='lead'")
    manifest = demo.demo_config(demo.OURS).build_task().manifest(0)
    seen, held_out = (len(manifest.sides[side]) for side in ("train", "ood"))
    assert f"{seen} were seen in training and {held_out} held out" in page
    assert f"HYLA's as recommended ({RECOMMENDED})" in unescape(page)
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    # Again: nothing is trained.
    times = {path: path.stat().st_mtime_ns for path in runs.glob("*/finished.json")}
    assert len(times) == 3
    assert main(command) == 0
    assert times == {path: path.stat().st_mtime_ns for path in runs.glob("*/finished.json")}


def test_without_a_terminal_lines_say_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys):
    now = 0.0
    monkeypatch.setattr(command.time, "monotonic", lambda: now)
    with command._Watch() as watch:
        for now in range(30):  # one record a second
            watch.stepped("softmax", 50 * now)
    introduction, *lines = capsys.readouterr().out.splitlines()
    assert 'recommended is "hyla.expected2"' in introduction
    assert [line.partition(" of 6,000")[0] for line in lines] == [
        "softmax: step 500",
        "softmax: step 1,000",
    ]


@pytest.mark.parametrize("package", ["matplotlib", "plotly"])
def test_a_missing_package_is_named_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, capsys
):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo", "--root", str(tmp_path / "runs"), "--device", "cpu"]) == USAGE
    assert (
        f'{package} is not installed: pip install -e "path/to/hyla[figures]"'
        in capsys.readouterr().err
    )
    assert not (tmp_path / "runs").exists()

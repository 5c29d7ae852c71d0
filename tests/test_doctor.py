"""`hyla doctor`: what it finds, and that it notices what is wrong."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from hyla.attention import attention
from hyla.attention.kernels.cpu import compiler
from hyla.attention.spec import RECOMMENDED
from hyla.cli import main
from hyla.doctor import checks, installation
from hyla.doctor.checks import Check, run_checks
from hyla.doctor.examination import _print_checks, _print_kernels
from hyla.doctor.kernels import CASES, KernelFinding, kernel_findings
from hyla.training.run.reading import read_branch_scales
from tiny_text import tiny_corpus

CPU = torch.device("cpu")
on_cpu_alone = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is so without a GPU")


def report(capsys) -> tuple[int, dict]:
    code = main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_installation_is_well(capsys):
    code, found = report(capsys)
    assert code == 0
    assert found["healthy"]
    assert found["versions"]["torch"] == torch.__version__
    assert found["devices"][0].startswith("CPU")
    assert {check["passed"] for check in found["checks"]} == {True}


def test_the_text_says_the_same(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for part in ("Versions and devices", "Optional parts", "Fused kernels", "All is well."):
        assert part in shown


def test_names_leave_what_is_said_of_them_in_its_column(capsys):
    checked = [f"kernel, {case.name}" for case in CASES]
    _print_kernels(KernelFinding(case=c.name, kernel=None, reason="") for c in CASES)
    _print_checks(Check(name=name, passed=True, detail="", seconds=0) for name in checked)
    shown = capsys.readouterr().out.splitlines()
    for word in ("no:", "ok:"):
        assert len({line.index(word) for line in shown if f" {word}" in line}) == 1


@on_cpu_alone
@pytest.mark.skipif(compiler.why_unavailable() is not None, reason="needs a C++ compiler")
def test_why_no_kernel_runs_is_said():
    findings = list(kernel_findings(CPU))
    assert len(findings) == len(CASES)
    taken = [finding.case for finding in findings if finding.kernel is not None]
    on_this = ["SRAVEN", "fuzzy logic"] if compiler.why_unavailable() is None else []
    assert [case.split(":")[0] for case in taken] == on_this
    assert {f.reason for f in findings if f.kernel is None} == {"torch sees no CUDA device"}


@on_cpu_alone
def test_what_a_cpu_lacks_for_its_kernel_is_said(monkeypatch):
    monkeypatch.setattr(compiler, "_compiler", lambda: None)
    first = next(kernel_findings(CPU))
    assert first.kernel is None
    assert "it needs Linux and a C++ compiler (g++)" in first.reason


def _off_by_a_thousandth(*inputs, **options):
    """Attention as a wrong kernel or a broken BLAS would compute it."""
    if options.get("attention") == "hyla" and inputs[0].dtype == torch.float32:
        return attention(*inputs, **options) * 1.001
    return attention(*inputs, **options)


def _wrong_gradient(*inputs, **options):
    """Attention whose values do not say how they depend on the queries."""
    q, *rest = inputs
    return attention(q.detach() + 0.5 * (q - q.detach()), *rest, **options)


@pytest.mark.parametrize(
    ("fault", "name", "reason"),
    [
        (_off_by_a_thousandth, "equations, float32 against float64", "hyla is off by 1.0e-03"),
        (_wrong_gradient, "gradients against finite differences", "differ from finite differences"),
    ],
)
def test_wrong_numbers_are_found(capsys, monkeypatch, fault, name, reason):
    monkeypatch.setattr(checks, "attention", fault)
    code, found = report(capsys)
    assert code == 1
    failed = {c["name"]: c["detail"] for c in found["checks"] if not c["passed"]}
    assert reason in failed[name]
    assert main(["doctor"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_check_that_crashes_has_failed(monkeypatch):
    def crash(*inputs, **options):
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(checks, "attention", crash)
    first, *_ = run_checks(CPU)
    assert not first.passed
    assert "illegal memory access" in first.detail


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_check_of_a_kernel_compares_output_and_gradients(case, monkeypatch):
    """Without a GPU, the equations in the kernel's dtype stand in for the kernel."""
    asked = []

    def stand_in(*inputs, backend, **options):
        asked.append((backend, inputs[0].dtype))
        return attention(*inputs, backend="reference", **options)

    monkeypatch.setattr(checks, "attention", stand_in)
    assert ("dq" in checks.kernel_agrees(case, CPU)) == case.gradients
    assert asked == [("fused", case.dtype), ("reference", torch.float64)]

    def half_as_large(*inputs, backend, **options):
        out = attention(*inputs, backend="reference", **options)
        return out / 2 if backend == "fused" else out

    monkeypatch.setattr(checks, "attention", half_as_large)
    with pytest.raises(checks.CheckError, match=r"output is off by 5\.0e-01"):
        checks.kernel_agrees(case, CPU)


def test_extras_are_those_of_the_project():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    declared = project["project"]["optional-dependencies"]

    def distributions(extra: str) -> list[str]:
        names = []
        for requirement in declared[extra]:
            name = requirement.partition(">=")[0]
            if name.startswith("hyla["):
                for other in name.removeprefix("hyla[").removesuffix("]").split(","):
                    names += distributions(other)
            else:
                names.append(name)
        return names

    for_users = {extra: distributions(extra) for extra in declared if extra not in ("dev", "docs")}
    assert {name: list(needs) for name, (_, needs) in installation.EXTRAS.items()} == for_users


def test_what_is_missing_comes_with_how_to_get_it(monkeypatch):
    monkeypatch.setattr(installation, "_installed", lambda name: None)
    figures = next(extra for extra in installation.extras() if extra.name == "figures")
    assert figures.missing == ("matplotlib", "plotly")
    assert figures.install == 'pip install -e "path/to/hyla[figures]"'


@pytest.mark.parametrize(("count", "words"), [(1, "1 thread"), (2, "2 threads")])
def test_threads_are_counted_in_words(monkeypatch, count, words):
    monkeypatch.setattr("torch.get_num_threads", lambda: count)
    assert installation.devices()[0].endswith(f"torch uses {words}")


def test_runs_without_the_command_line_library():
    code = """
import runpy, sys
sys.modules["cyclopts"] = None
sys.argv = ["hyla.doctor", "--json"]
runpy.run_module("hyla.doctor", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["healthy"]


# --- hyla doctor init ---------------------------------------------------------------------------


def test_the_start_of_models_as_a_table(capsys):
    command = ["doctor", "init", "sraven", "--scale", "paper", "--attention", "softmax", "hyla"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    # attention, block, stream, attention branch, how many times, a mark, ...
    first = {row[0]: row for row in rows if row[1:2] == ["1"]}
    assert first.keys() == {"softmax", "hyla"}
    assert first["softmax"][2:5] == ["0.317", "0.436", "1.37"]
    assert first["hyla"][2:6] == ["0.317", "39.4", "124", "!"]
    assert sum(row.count("!") for row in rows[1:]) == 1
    assert len([row for row in rows if row[:1] in (["2"], ["3"], ["4"])]) == 6
    assert "softmax: no branch is more than 3 times" in shown
    assert "hyla: the attention branch of block 1 is 39.4 where the stream is 0.317" in shown


def test_what_is_recommended_is_not_marked(capsys):
    """Its branch is three times a small stream by design, and nothing has to be done about it."""
    command = ["doctor", "init", "sraven", "--scale", "paper", "--attention", RECOMMENDED]
    assert main(command) == 0
    heading, *shown = capsys.readouterr().out.splitlines()
    assert heading.rstrip().endswith("! drowns the stream")
    assert not any("!" in line for line in shown)
    assert " 3.65 " in shown[1]
    assert shown[-1] == (
        f"{RECOMMENDED}: no branch drowns its stream: 3.65 times is the most, 1.16 where the "
        "stream is small itself (0.317)"
    )


def test_the_start_of_models_as_json(capsys):
    assert main(["doctor", "init", "fuzzy", "--scale", "laptop", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["task"], found["scale"], found["most_times_the_stream"]) == ("fuzzy", "laptop", 3)
    assert {"softmax", "linear", "hyla", RECOMMENDED} == found["attention"].keys()
    for name, one in found["attention"].items():
        block = one["blocks"][0]
        assert block["attention_ratio"] == pytest.approx(block["attention"] / block["stream"])
        assert block["feed_forward_ratio"] == pytest.approx(
            block["feed_forward"] / block["between"]
        )
        assert (one["warning"] is not None) == (name in ("linear", "hyla")), name


def test_the_start_is_that_of_a_run(tmp_path, capsys):
    """The same model and batch as `hyla train` has before its first step."""
    task = ["fuzzy", "--scale", "smoke", "--attention", "linear"]
    assert main(["train", *task, "--steps", "1", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["doctor", "init", *task, "--json"]) == 0
    [path] = tmp_path.iterdir()
    logged = read_branch_scales(path)
    assert logged is not None
    [block] = json.loads(capsys.readouterr().out)["attention"]["linear"]["blocks"]
    [want] = logged["blocks"]
    assert {name: block[name] for name in want} == pytest.approx(want, rel=1e-4)


def test_the_start_of_a_language_model(tmp_path, capsys):
    pytest.importorskip("sentencepiece")
    command = ["doctor", "init", "language", "--scale", "smoke", "--json"]
    found = {}
    corpus = tiny_corpus(tmp_path).path
    for kind, more in (("random", []), ("mini", ["--size", "mini"]), ("text", ["--data", corpus])):
        assert main([*command, *map(str, more), "--attention", "softmax", "hyla"]) == 0
        found[kind] = json.loads(capsys.readouterr().out)["attention"]
    assert [len(one["hyla"]["blocks"]) for one in found.values()] == [2, 4, 2]
    for one in found.values():  # embeddings are small, softmax attention is not large
        assert one["softmax"]["blocks"][0]["attention"] < 1
        assert one["softmax"]["warning"] is None
        assert "attention branch of block 1" in one["hyla"]["warning"]
    assert found["random"] != found["text"]
    assert main([*command[:-1], "--attention", "softmax"]) == 0
    assert "where the stream is small itself" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fuzy"], "did you mean 'fuzzy'?"),
        (["fuzzy", "--attention", "softmax", "hylas"], "did you mean 'hyla'?"),
        (["fuzzy", "--scale", "papper"], "did you mean 'paper'?"),
        (["sraven", "--size", "mini"], "settings of the task language, not of sraven"),
        (["language", "--data", "nowhere"], "not a prepared corpus"),
        (["language", "--size", "minni"], "did you mean 'mini'?"),
    ],
)
def test_the_start_of_what_is_not_there(arguments, message, capsys):
    assert main(["doctor", "init", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line

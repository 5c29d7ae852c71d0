"""`hyla explore`: what it starts, prints and refuses; and `hyla bench explorer`."""

import json
import re
import shutil
import socket
import urllib.request
import webbrowser
from pathlib import Path

import pytest
from explorer_fixtures import config_of, tiny_gallery

from hyla.benchmarks import explorer
from hyla.cli import main
from hyla.commands.shared.exits import FAILURE, USAGE
from hyla.explorer import gallery
from hyla.explorer.runs import RunFolder
from hyla.explorer.web import server
from hyla.explorer.web.app import build_app
from hyla.explorer.web.security import Access
from hyla.explorer.web.server import serving
from hyla.training import train
from tiny_runs import run_path


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(config_of("fuzzy"), root=root, device="cpu")
    return root


@pytest.fixture
def started(monkeypatch) -> list[str]:
    """The addresses at which a browser was opened; the server itself does not start."""
    opened: list[str] = []
    monkeypatch.setattr(server, "serve", lambda app, listening, on_ready: on_ready())
    monkeypatch.setattr(webbrowser, "open", opened.append)
    return opened


def test_it_opens_the_page_on_this_machine(started, capsys):
    assert main(["explore", "--port", "0"]) == 0
    [url] = started
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
    assert url in capsys.readouterr().out


def test_or_only_says_where_it_is(started, root, capsys):
    run = run_path(root)
    for named in (str(run), run.name):
        options = ["--root", str(root), "--no-open", "--port", "0"]
        assert main(["explore", named, *options]) == 0
    assert started == []
    assert "http://127.0.0.1:" in capsys.readouterr().out


def test_others_need_the_token_that_is_printed(started, capsys):
    assert main(["explore", "--host", "0.0.0.0", "--port", "0", "--no-open"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r":\d+/\?token=[\w-]{32}", printed)
    assert "unencrypted" in printed


def test_runs_that_there_are_not(started, root, tmp_path, capsys):
    name = run_path(root).name
    assert main(["explore", name[:-1], "--root", str(root), "--port", "0"]) == USAGE
    assert f"did you mean '{name}'?" in capsys.readouterr().err
    assert main(["explore", "nothing", "--root", str(tmp_path), "--port", "0"]) == USAGE
    assert "holds no runs" in capsys.readouterr().err


def test_runs_that_cannot_be_explored(started, root, tmp_path, capsys):
    text, young, empty = tmp_path / "text", tmp_path / "young", tmp_path / "young" / "empty"
    text.mkdir()
    (text / "config.json").write_text('{"task_name": "language"}')
    shutil.copytree(run_path(root), young, ignore=shutil.ignore_patterns("checkpoint*"))
    empty.mkdir()
    for path, code, reason in (
        (text, FAILURE, "hyla generate"),
        (young, FAILURE, "no checkpoint"),
        (empty, USAGE, "not a run"),
        (tmp_path, FAILURE, "hyla generate"),  # a folder of runs none of which can be
    ):
        assert main(["explore", str(path), "--port", "0"]) == code
        assert reason in capsys.readouterr().err


def test_runs_are_found_where_compare_finds_them(root, tmp_path, monkeypatch, started, capsys):
    shown = []
    monkeypatch.setattr(
        "hyla.explorer.web.app.build_app", lambda gallery, *_: shown.append(gallery)
    )
    name = run_path(root).name
    shutil.copytree(root, tmp_path / "tutorial")
    shutil.copytree(run_path(root), tmp_path / "tutorial" / "again")
    (tmp_path / "tutorial" / "text").mkdir()
    (tmp_path / "tutorial" / "text" / "config.json").write_text('{"task_name": "language"}')
    for named, runs in (
        (name, {name}),
        (f"tutorial/{name}", {name}),
        (str(tmp_path / "tutorial"), {name, "again"}),
        ("tutorial", {name, "again"}),
    ):
        assert main(["explore", named, "--root", str(tmp_path), "--no-open", "--port", "0"]) == 0
        assert {id.partition(":")[0] for id in shown.pop().subjects if ":" in id} == runs
        assert ("hyla generate" in capsys.readouterr().out) == (len(runs) > 1)


def test_a_port_that_is_taken(started, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["explore", "--port", str(taken.getsockname()[1])]) == USAGE
    assert "--port 0" in capsys.readouterr().err
    assert main(["explore", "--port", "99999"]) == USAGE


def test_the_server_answers_and_ends(tmp_path):
    app = build_app(tiny_gallery(), RunFolder(tmp_path), Access())
    with serving(app) as url, urllib.request.urlopen(f"{url}api/about") as answer:
        assert json.load(answer)["models"][0]["id"] == "sraven-tiny"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}api/about")


def test_requests_are_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(explorer, "MIN_REQUESTS", 2)
    monkeypatch.setattr(explorer, "PUZZLES", 2)
    monkeypatch.setattr("hyla.explorer.codes.INSTANCES", 32)
    monkeypatch.setattr(gallery, "open_gallery", lambda runs: tiny_gallery())
    arguments = ["bench", "explorer", "--seconds", "0.01", "--device", "cpu"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "explorer-cpu.json").read_text())["rows"]
    assert {row["request"] for row in rows} >= {"answers, permuted", "swap", "fuzzy slice"}
    assert all(0 < row["median_ms"] <= row["p95_ms"] for row in rows)

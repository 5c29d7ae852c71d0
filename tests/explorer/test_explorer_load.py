"""The explorer when more ask than it can answer: in order, or refused at once, in flat memory."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from explorer_fixtures import client_of
from hostile_runs import add_hostile_folders, add_run
from many_clients import besiege, get, get_json, percentile_99, requests_of, run

from hyla.explorer.web import patience
from hyla.explorer.web.admission import AT_ONCE, MOST_WAITING, Admission
from hyla.explorer.web.server import serving

LONGEST_P99 = 2.0  # seconds, for those who are answered


@contextlib.contextmanager
def explorer(root: Path) -> Iterator[tuple[str, int]]:
    """Run `hyla explore` in a process of its own; yields its address and its number."""
    command = [sys.executable, "-m", "hyla", "explore", "--no-open", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # where uvicorn says what it refuses
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0], process.pid
    finally:
        process.terminate()
        process.communicate()


def resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Runs among folders that are none, and one with a log of a million lines."""
    add_hostile_folders(tmp_path)
    for number in range(20):
        add_run(tmp_path / "lab" / f"run-{number}", lines=200)
    add_run(tmp_path / "long", lines=1_000_000)
    return tmp_path


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process")
@pytest.mark.parametrize(
    ("clients", "seconds"),
    [pytest.param(60, 3, id="short"), pytest.param(200, 20, marks=pytest.mark.slow, id="long")],
)
def test_many_clients_at_once(run_folder, clients, seconds):
    runs = ["long", "garbage", *(f"lab/run-{number}" for number in range(20))]

    async def load(url: str, process: int) -> None:
        about = await get_json(url, "/api/about")
        draw = requests_of(about, runs)
        await besiege(url, draw, clients=clients, seconds=seconds / 2)  # threads, models, caches
        before = resident_bytes(process)
        outcome = await besiege(url, draw, clients=clients, seconds=seconds)
        grown = resident_bytes(process) - before
        print(f"{clients} clients for {seconds} s: {grown / 1e6:+.1f} MB\n{outcome}")
        assert outcome.statuses.keys() <= {200, 409, 503}
        assert outcome.statuses[200] > clients
        assert grown < 30e6
        if seconds > 10:  # of so many answers, the slowest hundredth says something
            assert percentile_99(outcome.answered) <= LONGEST_P99
        assert (await get(url, "/api/runs"))[0] == 200  # and is as well as before

    with explorer(run_folder) as (url, process):
        run(load(url, process))


def test_in_order_and_no_more_than_can_wait(monkeypatch):
    """Requests are let in as they came; who comes when the queue is full is told at once."""
    monkeypatch.setattr("hyla.explorer.web.admission.LONGEST_WAIT", 60)  # whatever else runs here
    entered, refused = [], []
    release = asyncio.Event()

    async def work(scope, receive, send):
        entered.append(scope["number"])
        await release.wait()

    async def ask(number: int) -> None:
        async def send(message):
            if message["type"] == "http.response.start":
                refused.append((number, message["status"]))

        scope = {"type": "http", "path": "/api/about", "number": number}
        await admission(scope, nothing, send)

    admission = Admission(work)

    async def crowd() -> None:
        count = AT_ONCE + MOST_WAITING + 5
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(ask(number))
            await asyncio.sleep(0)
            assert entered == list(range(AT_ONCE))
            assert refused == [(number, 503) for number in range(count - 5, count)]
            release.set()
        assert entered == list(range(count - 5))

    run(crowd())


async def nothing():
    """What is received of requests without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


def test_who_waited_too_long_is_told_and_leaves_no_place_taken(monkeypatch):
    monkeypatch.setattr("hyla.explorer.web.admission.LONGEST_WAIT", 0.01)
    statuses = []
    release = asyncio.Event()

    async def work(scope, receive, send):
        await release.wait()
        statuses.append(200)

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    admission = Admission(work)
    scope = {"type": "http", "path": "/api/about"}

    async def crowd() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE + 3):
                group.create_task(admission(scope, nothing, send))
            while len(statuses) < 3:
                await asyncio.sleep(0.01)
            assert statuses == [503] * 3
            release.set()
        for _ in range(AT_ONCE + 1):
            await admission(scope, nothing, send)

    run(crowd())
    assert statuses[3:] == [200] * (2 * AT_ONCE + 1)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /api/about HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"]
)
def test_half_open_connections_are_closed(gallery, tmp_path, monkeypatch, sent):
    monkeypatch.setattr(patience, "FOR_REQUESTS", 0.2)
    with serving(client_of(gallery, tmp_path).app) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
            connection.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_an_answer_that_nobody_takes_is_given_up(gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(patience, "FOR_REQUESTS", 0.1)
    monkeypatch.setattr(patience, "FOR_ANSWERS", 0.3)
    with serving(client_of(gallery, tmp_path).app) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
            # A body that never comes keeps the request from being complete.
            connection.sendall(
                b"POST /api/fuzzy/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"
            )
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""

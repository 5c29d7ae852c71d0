"""constraints.txt names every package that an environment for development has; the check of it."""

import importlib.metadata
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from packaging.requirements import Requirement

import audit
import pin


def required_by(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> None:
    """Add to `seen` all installed packages that one needs, with the extras asked for."""
    if (name, extras) in seen:
        return
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    seen.add((name, extras))
    for requirement in map(Requirement, lines):
        wanted = ({"extra": extra} for extra in (*extras, ""))
        if requirement.marker is None or any(map(requirement.marker.evaluate, wanted)):
            required_by(pin.normalised(requirement.name), frozenset(requirement.extras), seen)


def test_every_package_is_pinned():
    seen: set[tuple[str, frozenset[str]]] = set()
    required_by("hyla", frozenset({"dev"}), seen)
    needed = {name for name, _ in seen if name != "hyla" and not pin.belongs_to_torch(name)}
    pinned = {line.split("==")[0] for line in audit.read_pins(audit.CONSTRAINTS.read_text())}
    assert len(needed) > 100
    assert needed <= pinned, sorted(needed - pinned)


# --- known vulnerabilities ----------------------------------------------------------------------


@contextmanager
def database(known: dict[str, list[str]]) -> Iterator[str]:
    """A database that knows these vulnerabilities, by package."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            results = []
            for query in json.loads(content)["queries"]:
                assert query["package"]["ecosystem"] == "PyPI"
                assert query["version"]
                ids = known.get(query["package"]["name"])
                results.append({"vulns": [{"id": id} for id in ids]} if ids else {})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": results}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_known_vulnerabilities_fail(monkeypatch, capsys):
    with database({"torch": ["GHSA-1", "PYSEC-2"]}) as url:
        monkeypatch.setattr(audit, "DATABASE", url)
        assert audit.main() == 1
        assert "has known vulnerabilities: GHSA-1, PYSEC-2" in capsys.readouterr().out
        monkeypatch.setattr(audit, "ACCEPTED", {"GHSA-1": "not used", "PYSEC-2": "not used"})
        assert audit.main() == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://host.invalid"])
def test_without_a_database_one_line_says_so(monkeypatch, capsys, url):
    monkeypatch.setattr(audit, "DATABASE", url)
    assert audit.main() == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "not checked" in said

"""Who may ask, and how much; every refusal is JSON and says why."""

import http.client
import socket

import pytest
from explorer_fixtures import client_of
from fastapi.testclient import TestClient

from hyla.explorer.runs import RunFolder
from hyla.explorer.web.app import build_app
from hyla.explorer.web.security import COOKIE, MAX_BODY, Access, host_name
from hyla.explorer.web.server import new_token, serving

TOKEN = "a-token"
SWAP = "/api/sraven/swap"


@pytest.fixture
def guarded(gallery, tmp_path) -> TestClient:
    """Open to others, with a token."""
    access = Access(host="0.0.0.0", token=TOKEN)
    return client_of(gallery, tmp_path, access)


def reason(answer, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()["error"]


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost:8420", "[::1]:99", "LOCALHOST"])
def test_hosts_that_are_this_machine(client, host):
    assert client.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:8420",
        "localhost@evil.example",
        "10.0.0.1",
        "",
        "localhost:http",
        "[::1",
        "[::1].evil.example",
        "[::1].evil.example:8420",
        "[::1]x",
        "127.0.0.1/x",
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(client, host):
    assert "Host" in reason(client.get("/api/about", headers={"host": host}), 421)


def test_host_names():
    assert host_name("[::1]:80") == "::1"
    assert host_name("a b") in (None, "a b")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9", "http://127.0.0.1:8420.evil"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_sites_are_refused(client, method, origin):
    path = "/api/about" if method == "GET" else SWAP
    answer = client.request(method, path, headers={"origin": origin}, json={})
    assert "refused" in reason(answer, 403)


def test_the_pages_own_requests_are_not(client):
    headers = {"origin": "http://127.0.0.1:8420", "sec-fetch-site": "same-origin"}
    assert client.get("/api/about", headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_the_browser_says_about_where_a_request_is_from(client, site):
    headers = {"sec-fetch-site": site}
    assert "other sites" in reason(client.get("/api/about", headers=headers), 403)
    visit = headers | {"sec-fetch-mode": "navigate"}
    assert client.get("/", headers=visit).status_code == 200  # a link to the page
    assert reason(client.get("/api/about", headers=visit), 403)


def test_large_bodies_are_refused(client):
    body = b" " * (MAX_BODY + 1)
    json = {"content-type": "application/json"}
    assert "too large" in reason(client.post(SWAP, content=body, headers=json), 413)

    def chunks():
        for _ in range(MAX_BODY // 1000 + 1):
            yield b" " * 1000

    answer = client.post(SWAP, content=chunks(), headers=json)
    assert "too large" in reason(answer, 413)
    assert reason(client.post(SWAP, content=body[:100], headers=json), 422)


def test_errors_are_json(client):
    assert reason(client.get("/nowhere"), 404)
    assert reason(client.get("/docs"), 404)  # its page would load scripts from elsewhere
    refused = client.delete("/api/about")
    assert reason(refused, 405)
    assert refused.headers["allow"] == "GET"
    assert reason(client.get("/api/sraven/instance"), 422) == "model: Field required"
    assert reason(
        client.post(SWAP, content=b"{", headers={"content-type": "application/json"}), 422
    )
    assert reason(client.post(SWAP, content=b"{}"), 422)  # a form's, without a preflight


def test_a_bug_is_json_too(gallery, tmp_path, monkeypatch):
    client = client_of(gallery, tmp_path, raise_server_exceptions=False)
    monkeypatch.setattr(gallery["sraven-tiny"].sraven, "manifest", lambda seed: 1 / 0)
    answer = client.get("/api/sraven/instance", params={"model": "sraven-tiny"})
    assert "ZeroDivisionError" in reason(answer, 500)
    assert "nosniff" in answer.headers["x-content-type-options"]


@pytest.mark.parametrize("path", ["/", "/api/about", "/nowhere", "/openapi.json"])
def test_security_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"


def test_plotly_is_served_from_here(client):
    answer = client.get("/static/plotly.min.js")
    assert answer.status_code == 200
    assert "javascript" in answer.headers["content-type"]


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/..%2fapp.py"],
)
def test_nothing_but_the_page_is_served(gallery, tmp_path, path):
    # By hand: clients tidy such paths up.
    with serving(build_app(gallery, RunFolder(tmp_path), Access())) as url:
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 404
        assert b"error" in answer.read()
        connection.close()


# --- the token -----------------------------------------------------------------------------------


def test_only_this_machine_goes_without_a_token():
    assert new_token("127.0.0.1") is new_token("::1") is new_token("localhost") is None
    assert len(new_token("0.0.0.0") or "") >= 24
    assert new_token("192.168.0.7") != new_token("192.168.0.7")
    with pytest.raises(ValueError, match="a token is needed"):
        Access(host="0.0.0.0")


@pytest.mark.parametrize("path", ["/", "/api/about", "/openapi.json", "/static/plotly.min.js"])
def test_without_the_token_there_is_nothing(guarded, path):
    assert "token" in reason(guarded.get(path), 401)
    assert "token" in reason(guarded.get(path, params={"token": "a-tokem"}), 401)
    assert "token" in reason(guarded.get(path, headers={"cookie": f"{COOKIE}=é".encode()}), 401)


def test_the_address_brings_the_token_and_a_cookie_keeps_it(guarded):
    visit = guarded.get("/", params={"token": TOKEN, "view": "code"})
    assert visit.status_code == 200
    assert visit.headers["refresh"] == "0; url=/?view=code"
    cookie = visit.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert guarded.get("/api/about").status_code == 200  # the client keeps cookies
    # Also who has the cookie is not left with an address that must not be passed on.
    assert guarded.get("/", params={"token": TOKEN}).headers["refresh"] == "0; url=/"
    assert "refresh" not in guarded.get("/").headers


def test_browsers_of_others_have_nothing_to_complain_about(guarded):
    visit = guarded.get("/", params={"token": TOKEN})
    assert "cross-origin-opener-policy" not in visit.headers
    assert guarded.get("/favicon.ico").status_code == 200


def test_cookies_of_other_services_of_the_host_are_no_obstacle(guarded):
    cookie = f'_xsrf=2|a|b; other={{"a": 1, "b": [2]}}; {COOKIE}={TOKEN}; last'
    assert guarded.get("/api/about", headers={"cookie": cookie}).status_code == 200


def test_the_token_is_no_key_to_the_api_by_address(guarded):
    assert reason(guarded.get("/api/about", params={"token": TOKEN}), 401)


@pytest.mark.parametrize(
    ("host", "status"),
    [("192.168.0.7:8420", 200), (f"{socket.gethostname()}:8420", 200), ("evil.example", 421)],
)
def test_other_hosts_by_flag(guarded, host, status):
    headers = {"host": host, "cookie": f"{COOKIE}={TOKEN}"}
    assert guarded.get("/api/about", headers=headers).status_code == status

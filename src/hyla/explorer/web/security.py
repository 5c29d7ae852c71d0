"""Who may ask: the guard in front of every request.

The explorer reads files of whoever started it, so no other site, and no other machine without being
told the token, may use it:

- A page of another site can send requests to a local server, and read what comes back if its own
  name is made to point here (DNS rebinding). It cannot choose the Host header, nor hide Origin.
- Bound to anything but the loopback interface, a token is asked for, which the page's address
  carries once and a cookie afterwards.
- Bodies are read before anything else happens, up to a limit.
"""

import hmac
import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 64 * 1024
COOKIE = "hyla-explorer"

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",  # plotly's downloads of figures
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Without encryption, browsers heed this on the loopback interface, and elsewhere complain about it.
LOOPBACK_HEADERS = {"Cross-Origin-Opener-Policy": "same-origin"}


@dataclass(frozen=True, kw_only=True)
class Access:
    """From where, and with what, the explorer may be used."""

    host: str = "127.0.0.1"
    """What the server is bound to."""
    token: str | None = None
    """What has to be known to use it; None on the loopback interface."""

    def __post_init__(self):
        if self.token is None and not is_loopback(self.host):
            raise ValueError(f"{self.host} can be reached by others: a token is needed")

    def allows_host(self, header: str) -> bool:
        """Whether a Host header may be meant for this server.

        Where others may connect, any address will do, as only names can be rebound.
        """
        name = host_name(header)
        if name is None:
            return False
        if is_loopback(name):
            return True
        if is_loopback(self.host):
            return False
        return _is_address(name) or name in {self.host.lower(), socket.gethostname().lower()}


class Guard:
    """ASGI middleware: lets pass what `Access` allows, and puts security headers on all answers."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app, self._access = app, access
        self._headers = HEADERS | (LOOPBACK_HEADERS if is_loopback(access.host) else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":  # no web sockets here
            return await send({"type": "websocket.close", "code": 1008})
        send = _with_headers(send, self._headers)
        headers = Headers(scope=scope)
        refused = self._refused(scope, headers) or self._without_token(scope)
        body = b"" if refused else await _read_body(headers, receive)
        if body is None:
            refused = _error(413, f"the body is too large: at most {MAX_BODY // 1024} KiB")
        if refused is not None:
            return await refused(scope, receive, send)
        await self._app(scope, _replay(body or b"", receive), send)

    def _refused(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse what comes from elsewhere."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._access.allows_host(hosts[0]):
            shown = hosts[0] if hosts else "none"
            return _error(
                421, f"the Host header {shown!r} is not this server's: open the printed address"
            )
        if origins and not all(_same_origin(origin, hosts[0]) for origin in origins):
            return _error(403, f"requests from {origins[0]!r} are refused: use the explorer's page")
        # Browsers say this of their own accord; following a link to the page is no harm.
        site = headers.get("sec-fetch-site", "none")
        is_visit = headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        if site not in ("none", "same-origin") and not is_visit:
            return _error(403, "requests from other sites are refused: use the explorer's page")
        return None

    def _without_token(self, scope: Scope) -> Response | None:
        """Ask for the token; the page's address may carry it, and is then cleaned of it."""
        token = self._access.token
        if token is None:
            return None
        given = parse_qsl(scope["query_string"].decode("latin-1"))
        if scope["path"] == "/" and any(
            name == "token" and _is_token(value, token) for name, value in given
        ):
            rest = urlencode([(name, value) for name, value in given if name != "token"])
            # Not a redirect: whoever follows a link from another site would be sent on without
            # a strict cookie. A page that refreshes itself comes from here.
            answer = PlainTextResponse("One moment ...")
            answer.headers["Refresh"] = f"0; url=/?{rest}" if rest else "0; url=/"
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        if _is_token(_cookie(scope), token):
            return None
        return _error(401, "a token is needed: open the address that `hyla explore` printed")


def is_loopback(host: str) -> bool:
    """Whether only this machine can be meant by a host's name or address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str | None:
    """Return the name or address in a Host header, without its port; None if it is none."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port  # raises if it is none
    except ValueError:
        return None
    # What follows a bracket is dropped there: [::1].evil.com is no address.
    trailing = header.rpartition("]")[2] if "]" in header else ""
    if parts.netloc != header or "@" in header or trailing[:1] not in ("", ":"):
        return None
    return parts.hostname or None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_origin(origin: str, host: str) -> bool:
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _is_token(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _cookie(scope: Scope) -> str:
    # Not by http.cookies: it stops at what it does not like, and a host's other services, on other
    # ports, have cookies too.
    return HTTPConnection(scope).cookies.get(COOKIE, "")


async def _read_body(headers: Headers, receive: Receive) -> bytes | None:
    """Return the body, however it is sent; None if it is too large."""
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY:
        return None
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body", False):
            return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand over a body that was read already, then whatever comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _with_headers(send: Send, added: dict[str, str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in added.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status_code=status)

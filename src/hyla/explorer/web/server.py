"""Running the explorer: a socket, and a server on it."""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import uvicorn
from starlette.types import ASGIApp

from hyla.explorer.web.patience import PatientProtocol
from hyla.explorer.web.security import is_loopback

# Fewer than the files that a process may have open on most machines.
MOST_CONNECTIONS = 800


def new_token(host: str) -> str | None:
    """Return a token where others could connect; None on the loopback interface."""
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any. A ValueError says why there is none."""
    if not 0 <= port < 2**16:  # getaddrinfo would take it modulo that
        raise ValueError(f"--port must lie between 0 (any that is free) and 65535, got {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Saying TCP matters: asyncio sends small answers at once on sockets that say so, and on
        # others they wait 40 ms for an acknowledgement.
        listening = socket.socket(found[0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(found[4])
            listening.listen()
        except BaseException:
            listening.close()
            raise
        return listening
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host}, port {port}: {error}; choose another with --port, or "
            "--port 0 for any that is free"
        ) from error


def address(host: str, listening: socket.socket, token: str | None) -> str:
    """Return the address of the page."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    query = "" if token is None else f"?token={token}"
    return f"http://{shown}:{listening.getsockname()[1]}/{query}"


def serve(app: ASGIApp, listening: socket.socket, *, on_ready: Callable[[], object]) -> None:
    """Answer requests until Ctrl-C."""
    server = _server(app)
    ready = threading.Thread(target=lambda: _wait(server) and on_ready(), daemon=True)
    ready.start()
    server.run(sockets=[listening])


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Answer requests from another thread while the context lasts; yields the address."""
    listening = listen("127.0.0.1", 0)
    server = _server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        if not _wait(server):
            raise RuntimeError("the explorer did not start")
        yield address("127.0.0.1", listening, None)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def _server(app: ASGIApp) -> uvicorn.Server:
    torch.set_num_threads(1)  # requests have threads; those of small products are in their way
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        limit_concurrency=MOST_CONNECTIONS,
        log_level="warning",
        server_header=False,
    )
    return uvicorn.Server(config)


def _wait(server: uvicorn.Server, seconds: float = 30) -> bool:
    """Wait until the server answers; whether it does."""
    deadline = time.monotonic() + seconds
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    return server.started

"""How many requests are worked on at once: the others wait their turn, briefly, or are told so.

Requests compute. Hundreds at the same time would each take the time of all, and nobody would get
an answer; a few at a time take no longer than alone.
"""

import asyncio
from weakref import WeakKeyDictionary

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

AT_ONCE = 4
MOST_WAITING = 32
LONGEST_WAIT = 1.0  # seconds


class Admission:
    """ASGI middleware: requests to the API go in in the order in which they come."""

    def __init__(self, app: ASGIApp):
        self._app = app
        # One for each event loop: a server has one, tests have several at the same time.
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._places = WeakKeyDictionary()
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer that everybody is busy."""
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            return await self._app(scope, receive, send)
        loop = asyncio.get_running_loop()
        places = self._places.setdefault(loop, asyncio.Semaphore(AT_ONCE))
        if not await self._enter(places):
            return await _busy()(scope, receive, send)
        try:
            await self._app(scope, receive, send)
        finally:
            places.release()

    async def _enter(self, places: asyncio.Semaphore) -> bool:
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                await places.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return True


def _busy() -> JSONResponse:
    reason = "the explorer is busy with other requests: try again in a moment"
    return JSONResponse({"error": reason}, status_code=503, headers={"Retry-After": "1"})

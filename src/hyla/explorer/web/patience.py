"""Connections on which nothing happens are closed, so that they cannot use up all there are."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

FOR_REQUESTS = 10.0  # seconds until a whole request has come
FOR_ANSWERS = 120.0  # until an answer has been computed, and taken


class PatientProtocol(H11Protocol):
    """Uvicorn's, which by itself waits for ever: for the rest of a request, and for its reader."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to look at the clock."""
        super().connection_made(transport)
        self._watched, self._waited = self.cycle, 0.0
        self._alarm = self.loop.call_later(FOR_REQUESTS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking."""
        self._alarm.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        # A cycle is a request and its answer: between two there is none, or one that is complete.
        self._waited = self._waited + FOR_REQUESTS if self.cycle is self._watched else 0.0
        self._watched = self.cycle
        between = self.cycle is None or self.cycle.response_complete
        if self._waited >= (FOR_REQUESTS if between else FOR_ANSWERS):
            self.transport.abort()
        else:
            self._alarm = self.loop.call_later(FOR_REQUESTS, self._look)

"""uvicorn's HTTP/1.1 protocol, bounded where a client sends slowly or without end.

uvicorn times a connection only between two requests, and its parser takes headers of any size. What
is refused here never becomes a request of the application.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..asgi.messages import MAX_HEADER_BYTES, HttpError
from ..asgi.streaming import ABORT

HEADER_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 75


class BoundedProtocol(HttpToolsProtocol):
    """Headers arrive within a time and a size, or the connection ends."""

    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_are_here()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        self._headers_are_here()
        # For a stream whose client takes nothing: what waits to be sent is not waited for.
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is None:
            return
        self._header_bytes += len(data)
        # One more read than a request's headers may have: a block of them that ends is left to the
        # application, which answers in the same words.
        if self._header_bytes > 2 * MAX_HEADER_BYTES:
            message = f"at most {MAX_HEADER_BYTES} bytes of headers"
            self._refuse(HttpError(431, "headers_too_large", message))

    def _await_headers(self) -> None:
        self._header_bytes = 0
        self._timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _headers_are_here(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._refuse(headers_too_slow())

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses, in the words of every other refusal."""
        self._refuse(HttpError(400, "invalid_request", msg))

    def _refuse(self, error: HttpError) -> None:
        self._headers_are_here()
        if self.transport.is_closing():
            return
        # Answers to earlier requests of the connection are not to be mixed with this one.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(farewell(error))
        self.transport.close()


def headers_too_slow() -> HttpError:
    """The headers did not arrive in time."""
    message = f"the headers did not arrive within {HEADER_SECONDS:g} s"
    return HttpError(408, "request_timeout", message)


def farewell(error: HttpError) -> bytes:
    """The response to what never became a request."""
    body = error.response().body
    reason = HTTPStatus(error.status).phrase
    head = (
        f"HTTP/1.1 {error.status} {reason}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body

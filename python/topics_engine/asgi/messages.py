"""Requests and responses over ASGI messages.

This module knows no verbs. An error below the application is an `HttpError`, which is also a
response.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_to_bytes

from .. import _core

if TYPE_CHECKING:
    from .route import Route

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]
# The headers `traceparent` and `tracestate` of a request.
TraceHeaders = tuple[bytes | None, bytes | None]
NO_TRACE: TraceHeaders = (None, None)

JSON = b"application/json"
NDJSON = b"application/x-ndjson"
OCTETS = b"application/octet-stream"
ARROW = b"application/vnd.apache.arrow.stream"
EVENTS = b"text/event-stream"
HTML = b"text/html; charset=utf-8"
JAVASCRIPT = b"text/javascript; charset=utf-8"
CSS = b"text/css; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
# What the client of a refused body may still send before the connection is closed. A client that
# writes its whole body before it reads gets the response instead of a reset.
LINGER_BYTES = 64 << 20
LINGER_SECONDS = 2.0
LINGERING = frozenset({413, 429})
# Headers that must not be repeated: only one of them would be used.
SINGLE = (
    b"authorization",
    b"content-encoding",
    b"content-type",
    b"host",
    b"idempotency-key",
    b"last-event-id",
    b"origin",
    b"sec-fetch-site",
    b"x-request-id",
)
TRACE = frozenset({b"traceparent", b"tracestate"})
MAX_HEADERS = 128
MAX_HEADER_BYTES = 64 << 10


class Disconnected(Exception):
    """The client disconnected; a response cannot be sent."""


class Response:
    """A complete response: status, body, content type and headers."""

    __slots__ = ("body", "cacheable", "compressible", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: Iterable[Header] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = list(headers)
        self.compressible = True
        # It has its own headers about caches.
        self.cacheable = False


class HttpError(Exception):
    """An error with a stable code; `response()` is what the client gets."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        detail: dict[str, Any] | None = None,
        headers: Iterable[Header] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = list(headers)

    def response(self) -> Response:
        error: dict[str, Any] = {"code": self.code, "message": str(self)}
        if self.detail is not None:
            error["detail"] = self.detail
        body = json.dumps({"error": error}, separators=(",", ":")).encode()
        return Response(
            self.status, body, headers=self.headers + retry_after_headers(self.status, body)
        )


def retry_after_headers(status: int, body: bytes) -> list[Header]:
    """The `Retry-After` header of a 429 or 503; none for another status."""
    if status not in (429, 503):
        return []
    return [(b"retry-after", str(_core.retry_after(body)).encode())]


CLOSE: Header = (b"connection", b"close")
PRIVATE: tuple[Header, ...] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
"""The headers of every answer with data: no cache stores it, and no browser takes it for a page."""


class Budget(Protocol):
    """A byte limit that all requests share."""

    def take(self, size: int) -> bool: ...
    def give(self, size: int) -> None: ...
    def full(self) -> HttpError: ...


class Request:
    """One HTTP request: its headers as a dict, its body on demand."""

    __slots__ = (
        "_receive",
        "body_read",
        "headers",
        "id",
        "key",
        "method",
        "received",
        "route",
        "scope",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.body_read = False
        # Bytes of the body that are counted in the budget.
        self.received = 0
        # The client's id of the request, the label of its key.
        self.id = b""
        self.key = ""
        # For the metrics: the route, once it is known, and the status of the answer.
        self.route: Route | None = None
        self.status = 0

    def check_headers(self) -> None:
        """Refuses headers that are too large, too many or ambiguous, and those without a host."""
        headers = self.scope["headers"]
        if len(headers) > MAX_HEADERS or sum(map(_header_size, headers)) > MAX_HEADER_BYTES:
            limits = f"{MAX_HEADERS}, or of {MAX_HEADER_BYTES} bytes"
            message = f"the headers are over the limit of {limits}: send fewer"
            raise HttpError(431, "headers_too_large", message, headers=[CLOSE])
        if self.scope.get("http_version") == "1.1" and b"host" not in self.headers:
            raise HttpError(400, "invalid_request", "the header host is missing: send it")
        if len(headers) > len(self.headers):
            for name in SINGLE:
                if sum(name == given for given, _ in headers) > 1:
                    message = f"the header {name.decode()} was sent twice: send it once"
                    raise HttpError(400, "invalid_request", message)

    def trace(self) -> TraceHeaders:
        """The trace context. Two of them are none; the lines of a `tracestate` are one list."""
        parent = self.headers.get(b"traceparent")
        if parent is None:
            return NO_TRACE
        named = [(name, value) for name, value in self.scope["headers"] if name in TRACE]
        states = [value for name, value in named if name == b"tracestate"]
        if len(named) - len(states) > 1:
            return NO_TRACE
        return parent, b",".join(states)

    def refuse_query(self) -> None:
        """Refuses every query parameter, on a route that has none."""
        query: bytes = self.scope.get("query_string", b"")
        for pair in filter(None, query.split(b"&")):
            raw = unquote_to_bytes(pair.partition(b"=")[0].replace(b"+", b" "))
            try:
                name = raw.decode()[:100]
            except UnicodeDecodeError:
                name = "\ufffd"
            message = f"unknown query parameter `{name}`; there are none here"
            raise HttpError(400, "invalid_request", message, {"field": name})

    def has_body(self) -> bool:
        """Whether the client announced a body that is not empty."""
        length = self.headers.get(b"content-length")
        if length is not None:
            return length.strip() != b"0"
        # HTTP/2 needs neither header; the first message has the body.
        return b"transfer-encoding" in self.headers or self.scope["http_version"] == "2"

    async def body(self, limit: int, seconds: float, budget: Budget) -> bytes:
        """Reads the body: at most `limit` bytes unless that is 0, within `seconds`. `release`
        returns its bytes to the budget.
        """
        limit = limit or sys.maxsize
        length = self.headers.get(b"content-length", b"").strip()
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        try:
            async with asyncio.timeout(seconds):
                return await self._read(limit, budget)
        except TimeoutError:
            raise body_too_slow(seconds) from None

    async def _read(self, limit: int, budget: Budget) -> bytes:
        parts: list[bytes] = []
        while self.received <= limit and not self.body_read:
            part = await self._next()
            if not budget.take(len(part)):
                self.release(budget)
                raise budget.full()
            self.received += len(part)
            parts.append(part)
        if self.received > limit:
            self.release(budget)
            raise _too_large(limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self, budget: Budget) -> None:
        """Returns the bytes of the body to the budget."""
        budget.give(self.received)
        self.received = 0

    async def _next(self) -> bytes:
        """The next piece of the body; `body_read` is set after the last one."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        self.body_read = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def disconnected(self) -> None:
        """Returns when the client has disconnected. Call it after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def drain(self) -> None:
        """Reads and drops what the client still sends, within limits."""
        size = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while size <= LINGER_BYTES and not self.body_read:
                    size += len(await self._next())
        except (TimeoutError, Disconnected):
            return


def _header_size(header: Header) -> int:
    return len(header[0]) + len(header[1])


def body_too_slow(seconds: float) -> HttpError:
    """The error of a body that did not arrive in time."""
    message = f"the body did not arrive within {seconds:g} s"
    return HttpError(408, "request_timeout", message, headers=[CLOSE])


def _too_large(limit: int) -> HttpError:
    message = f"the body is over the limit of {limit} bytes: split it"
    return HttpError(413, "payload_too_large", message, {"max": limit}, headers=[CLOSE])


async def respond(request: Request, response: Response, send: Send) -> None:
    """Sends a response; one that closes the connection first lets the client finish its body."""
    body = b"" if request.method == "HEAD" else response.body
    headers = [
        (b"content-type", response.content_type),
        (b"content-length", str(len(response.body)).encode()),
        *(() if response.cacheable else PRIVATE),
        *response.headers,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    lingers = response.status in LINGERING and CLOSE in response.headers
    if lingers and not request.body_read and request.has_body():
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await request.drain()
        body = b""
    await send({"type": "http.response.body", "body": body})

"""One request of an HTTP/2 connection."""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

import httptools
from h2.errors import ErrorCodes

from ..asgi.messages import Header, HttpError, Request, respond
from ..asgi.streaming import ABORT, STALL_LIMIT
from .limits import transfer_seconds

log = logging.getLogger("uvicorn.error")
access = logging.getLogger("uvicorn.access")

Message = MutableMapping[str, Any]
Application = Callable[[Any, Any, Any], Awaitable[None]]

MAX_PIECE = 64 << 10
"""Bytes that a stream sends before other streams may send."""
# Headers of an HTTP/1.1 connection, which HTTP/2 forbids.
NOT_IN_HTTP2 = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"))


class Link(Protocol):
    """The methods of its connection that a stream uses."""

    loop: asyncio.AbstractEventLoop
    stall: float

    @property
    def default_headers(self) -> list[Header]: ...
    async def wait_for_capacity(self) -> None: ...
    def send_window(self, stream_id: int) -> int: ...
    def begin(self, stream_id: int, headers: list[Header]) -> None: ...
    def informational(self, stream_id: int) -> None: ...
    def data(self, stream_id: int, data: bytes, last: bool) -> None: ...
    def acknowledge(self, stream_id: int, size: int) -> None: ...
    def reset(self, stream_id: int, code: ErrorCodes) -> None: ...
    def set_stall_factor(self, times: float) -> None: ...
    def add_unsent(self, size: int) -> None: ...
    def finished(self, stream: Stream) -> None: ...


class Stream:
    """Runs the application for one request, within the flow-control windows."""

    def __init__(self, link: Link, stream_id: int, scope: Message, app: Application) -> None:
        self.id = stream_id
        self._link = link
        self._app = app
        self.scope = scope
        scope["extensions"] = {
            # Both are the same here: queued data is sent before the end of a stream.
            ABORT: {"abort": self.abort, "close": self.abort},
            STALL_LIMIT: {"set_stall_factor": self.set_stall_factor},
        }
        self._stall = link.stall
        self._body = bytearray()
        # Window bytes of the body that was not read yet.
        self.held = 0
        self.ended = False
        # Whether `receive` has something to return: a piece of the body, or its end.
        self._fresh = False
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._started = False
        self.complete = False
        self.gone = False
        expect = dict(scope["headers"]).get(b"expect", b"")
        self._continue = expect.lower() == b"100-continue"

    def receive_data(self, data: bytes, size: int) -> None:
        """Buffers a piece of the body, which takes `size` bytes of the windows."""
        self._body += data
        self.held += size
        self._fresh = True
        self._arrived.set()

    def receive_end(self) -> None:
        """Marks the request as complete."""
        self.ended = self._fresh = True
        self._arrived.set()

    def leave(self) -> None:
        """Marks the client as gone: it has cancelled the request or disconnected."""
        self.gone = True
        self._arrived.set()
        self._writable.set()

    def wake(self) -> None:
        """Wakes the sender: the window may be open."""
        self._writable.set()

    def set_stall_factor(self, times: float) -> None:
        """Sets the stall timeout, as a multiple of the default."""
        self._stall = self._link.stall * times
        self._link.set_stall_factor(times)

    def abort(self) -> None:
        """Ends the stream of a client that reads nothing."""
        if not self.gone and not self.complete:
            self._link.reset(self.id, ErrorCodes.CANCEL)
            self.leave()

    async def run(self) -> None:
        """Runs the application."""
        try:
            await self._link.wait_for_capacity()
            # The request may have been cancelled while it waited.
            if not self.gone:
                await self._app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            log.exception("Exception in ASGI application\n")
            if not self._started:
                await self._fail()
        finally:
            if not self.complete and not self.gone:
                self._link.reset(self.id, ErrorCodes.INTERNAL_ERROR)
                self.leave()
            self._link.finished(self)

    async def _fail(self) -> None:
        failure = HttpError(500, "internal", "internal error: see the server's log").response()
        await respond(Request(self.scope, self.receive), failure, self.send)

    async def receive(self) -> Message:
        """The next message of the request."""
        if self._continue and not self._fresh and not self._started and not self.gone:
            self._link.informational(self.id)
        self._continue = False
        while not (self.gone or self.complete or self._fresh):
            self._arrived.clear()
            await self._arrived.wait()
        if self.gone or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        self._fresh = False
        held, self.held = self.held, 0
        if held:
            self._link.acknowledge(self.id, held)
        return {"type": "http.request", "body": body, "more_body": not self.ended}

    async def send(self, message: Message) -> None:
        """Sends the next message of the response."""
        if self.gone:
            return
        if not self._started:
            self._start(message)
            return
        if message["type"] != "http.response.body" or self.complete:
            raise RuntimeError(f"unexpected ASGI message {message['type']!r}")
        body = b"" if self.scope["method"] == "HEAD" else message.get("body", b"")
        last = not message.get("more_body", False)
        if body or last:
            await self._push(body, last)

    def _start(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"unexpected ASGI message {message['type']!r}")
        self._started = True
        status = message["status"]
        given = [*self._link.default_headers, *message.get("headers", ())]
        headers = [(name, value) for name, value in given if name.lower() not in NOT_IN_HTTP2]
        # The head goes out with the data that follows.
        self._link.begin(self.id, [(b":status", str(status).encode()), *headers])
        if access.hasHandlers():
            scope = self.scope
            query = scope["query_string"].decode("latin-1")
            path = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
            client = ":".join(map(str, scope["client"] or ()))
            access.info('%s - "%s %s HTTP/2" %d', client, scope["method"], path, status)

    async def _push(self, body: bytes, last: bool) -> None:
        left = memoryview(body)
        self._link.add_unsent(len(left))
        try:
            now = self._link.loop.time()
            # Progress renews `deadline`; nothing renews `latest`.
            deadline = now + self._stall
            latest = deadline + transfer_seconds(len(left))
            while not self.gone:
                size = min(len(left), self._link.send_window(self.id), MAX_PIECE)
                if size or not left:
                    piece, left = left[:size], left[size:]
                    self.complete = last and not left
                    self._link.data(self.id, bytes(piece), self.complete)
                    self._link.add_unsent(-size)
                    if not left:
                        return
                    deadline = self._link.loop.time() + self._stall
                    await asyncio.sleep(0)
                    continue
                self._writable.clear()
                try:
                    async with asyncio.timeout_at(min(deadline, latest)):
                        await self._writable.wait()
                except TimeoutError:
                    self.abort()
        finally:
            self._link.add_unsent(-len(left))


def refuse(error: HttpError) -> Application:
    """An application that answers with this error."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(Request(scope, receive), error.response(), send)

    return app


def fill_scope(scope: Message, headers: Iterable[Header], *, empty: bool) -> HttpError | None:
    """Fills a scope from HTTP/2 headers like one of HTTP/1.1; returns an error if they are
    wrong.
    """
    pseudo: dict[bytes, bytes] = {}
    plain: list[Header] = []
    for name, value in headers:
        if name.startswith(b":"):
            pseudo[name] = value
        else:
            plain.append((name, value))
    if b":authority" in pseudo:
        plain = [(b"host", pseudo[b":authority"]), *(h for h in plain if h[0] != b"host")]
    # An empty HTTP/1.1 body has a length of 0; an HTTP/2 one needs no header.
    if empty and not any(name == b"content-length" for name, _ in plain):
        plain.append((b"content-length", b"0"))
    scope["headers"] = plain
    scope["method"] = pseudo[b":method"].decode("latin-1")
    scope.update(path="/", raw_path=b"/", query_string=b"")
    try:
        url = httptools.parse_url(pseudo.get(b":path", b""))
        path = url.path.decode("ascii")
    except (httptools.HttpParserError, UnicodeDecodeError, AttributeError):
        return HttpError(400, "invalid_request", "Invalid HTTP request received.")
    root = scope["root_path"]
    scope["path"] = root + urllib.parse.unquote(path)
    scope["raw_path"] = root.encode() + url.path
    scope["query_string"] = url.query or b""
    return None

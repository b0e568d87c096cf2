"""uvicorn's HTTP/1.1 protocol, bounded where a client sends or takes slowly or without end, and the
place where a connection turns out to be HTTP/2.

uvicorn times a connection only between two requests, and its parser takes headers of any size. What
is refused here never becomes a request of the application.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ..asgi.messages import MAX_HEADER_BYTES, HttpError
from ..asgi.streaming import ABORT, STALL_LIMIT
from .limits import Limits, WriteTimeout, headers_too_slow

DEFAULTS = Limits()
WS = b"websocket"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_CODED = "Invalid `Transfer-Encoding`"


class BoundedProtocol(HttpToolsProtocol):
    """Headers arrive within a time and a size, and answers are taken, or the connection ends.

    `fresh` says that these are the first bytes of the connection: HTTP/2 begins there, or not at
    all.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits = DEFAULTS,
        fresh: bool = True,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        # What was received while it may be the beginning of HTTP/2; `None` when that is decided.
        self._opening: bytes | None = b"" if fresh else None
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        # The request asks for a protocol that there is not.
        self._declined = False
        self._write_timeout: WriteTimeout | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._write_timeout = WriteTimeout(self.loop, transport, self._limits.stall)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_are_here()
        self._unset_keepalive_if_required()
        if self._write_timeout is not None:
            self._write_timeout.connection_lost()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        self._headers_are_here()
        # Only a request ends the time that a connection may be idle: neither blank lines before it
        # nor the rest of a body that was answered early.
        self._unset_keepalive_if_required()
        if self._coding() is not None:
            # Not a request: the parser stops, and what is wrong is said there.
            raise ValueError
        self._declined = self.parser.should_upgrade() and self._get_upgrade() not in (None, WS)
        if self._declined:
            return
        self.scope["extensions"] = self._extensions()
        super().on_headers_complete()

    def _extensions(self) -> dict[str, dict[object, object]]:
        """What the application may ask of the server."""
        # For a stream whose client takes nothing: what waits to be sent is not waited for. For one
        # that cannot go on it is.
        ends: dict[object, object] = {"abort": self.transport.abort, "close": self._break_off}
        extensions: dict[str, dict[object, object]] = {ABORT: ends}
        if self._write_timeout is not None:
            extensions[STALL_LIMIT] = {"set_stall_factor": self._write_timeout.set_stall_factor}
        return extensions

    def _break_off(self) -> None:
        self.transport.close()
        self._closing()

    def data_received(self, data: bytes) -> None:
        if self._opening is not None:
            data = self._opening + data
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                self._opening = data
                return
            self._opening = None
            if data.startswith(PREFACE):
                self._become_http2(data)
                return
        self._feed(data)
        if self._timer is None:
            return
        self._header_bytes += len(data)
        # One more read than a request's headers may have: a block of them that ends is left to the
        # application, which answers in the same words.
        if self._header_bytes > 2 * MAX_HEADER_BYTES:
            message = f"the headers are over the limit of {MAX_HEADER_BYTES} bytes: send fewer"
            self._refuse(HttpError(431, "headers_too_large", message))

    def on_message_complete(self) -> None:
        if not self._declined:
            super().on_message_complete()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade() and len(data) > upgrade.args[0]:
                # Its frames would be nobody's.
                self.send_400_response("A WebSocket's client waits for the answer first.")
            elif self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._declined:
                self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            # Some of what is coded otherwise the parser refuses before it tells of the header.
            if self._coding() is None and not str(error).startswith(_CODED):
                self.send_400_response("Invalid HTTP request received.")
                return
            message = "this Transfer-Encoding is not supported: send chunked, or a Content-Length"
            self._refuse(HttpError(501, "not_implemented", message))

    def _coding(self) -> bytes | None:
        """How a body is encoded for its way, if that is not known here."""
        given = [value for name, value in self.headers or () if name == b"transfer-encoding"]
        coding = b", ".join(given)
        return None if not given or coding.strip().lower() == b"chunked" else coding

    def _decline_upgrade(self, rest: bytes) -> None:
        """Takes a request as if it had not asked for another protocol.

        The parser stops behind the headers of one that has, as if no body followed; what follows
        would be read as the next request.
        """
        self._declined = False
        version = self.parser.get_http_version()
        lines = [b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                words = (word.strip() for word in value.split(b","))
                value = b", ".join(w for w in words if w.lower() in (b"close", b"keep-alive"))
            if name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"".join((*lines, b"\r\n", rest)))

    def _become_http2(self, data: bytes) -> None:
        # h2 takes as long to import as all else: only who is asked for HTTP/2 pays for it.
        from .http2 import Http2Protocol

        self._headers_are_here()
        self.connections.discard(self)
        state = (self.config, self.server_state, self.app_state, self.loop)
        protocol = Http2Protocol(*state, self._limits)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._write_timeout is not None:
            self._write_timeout.set_stall_factor(1)
        self._closing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._closing()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timeout is not None:
            self._write_timeout.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timeout is not None:
            self._write_timeout.resume_writing()

    def shutdown(self) -> None:
        super().shutdown()
        self._closing()

    def _closing(self) -> None:
        if self._write_timeout is not None:
            self._write_timeout.transport_closing()

    def _await_headers(self) -> None:
        self._header_bytes = 0
        self._timer = self.loop.call_later(self._limits.header, self._too_slow)

    def _headers_are_here(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._refuse(headers_too_slow(self._limits.header))

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses, in the words of every other refusal."""
        self._refuse(HttpError(400, "invalid_request", msg))

    def _refuse(self, error: HttpError) -> None:
        self._headers_are_here()
        if self.transport.is_closing():
            return
        if self._is_next_to_be_answered():
            self.transport.write(error_response(error))
        self.transport.close()
        self._closing()

    def _is_next_to_be_answered(self) -> bool:
        """Whether what is wrong is wrong with the request that is answered next: answers to earlier
        ones are not to be mixed with this one. A request whose body is wrong is given up.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if self.pipeline or cycle.response_started or not cycle.more_body:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True


def error_response(error: HttpError) -> bytes:
    """The response to what never became a request."""
    body = error.response().body
    reason = HTTPStatus(error.status).phrase
    head = (
        f"HTTP/1.1 {error.status} {reason}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body

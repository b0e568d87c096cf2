"""uvicorn's HTTP/1.1 protocol with limits for slow and endless clients; it detects HTTP/2.

uvicorn has a timeout only between two requests, and its parser accepts headers of any size. A
request that is refused here never reaches the application.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ..asgi.messages import CLOSE, MAX_HEADER_BYTES, PRIVATE, HttpError
from ..asgi.streaming import ABORT, STALL_LIMIT
from .limits import Limits, WriteTimeout, headers_too_slow

DEFAULTS = Limits()
WS = b"websocket"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_AUTHORITY = re.compile(rb"[^/?#]*")
_CODED = "Invalid `Transfer-Encoding`"


class BoundedProtocol(HttpToolsProtocol):
    """Limits the time and size of headers, and the time in which responses are read.

    `fresh` says that the first bytes of the connection follow, which may start HTTP/2.
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
        # The received bytes while they may be the preface of HTTP/2; `None` once that is decided.
        self._opening: bytes | None = b"" if fresh else None
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        # The request asks for an unknown protocol.
        self._declined = False
        # The error of a malformed request, which is sent after the responses to earlier ones.
        self._last_error: HttpError | None = None
        self._write_timeout: WriteTimeout | None = None
        # The request that the application handles. uvicorn's `cycle` is the last one received.
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._write_timeout = WriteTimeout(
            self.loop,
            transport,
            self._limits.stall,
            unsent=self._limits.unsent,
            abort=self._abort,
        )
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        self._unset_keepalive_if_required()
        if self._write_timeout is not None:
            self._write_timeout.connection_lost()
        self._leave()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _leave(self) -> None:
        """Tells the application that the client is gone, and sends nothing more."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _abort(self) -> None:
        # The transport reports the loss later; the application must not write to it until then.
        self._leave()
        self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._start_header_timer()

    def on_headers_complete(self) -> None:
        self._cancel_header_timer()
        # Only a request ends the idle timeout: neither blank lines before it nor the rest of a body
        # that was answered early.
        self._unset_keepalive_if_required()
        if self._coding() is not None:
            # Stops the parser; `_feed` sends the error.
            raise ValueError
        self._take_authority()
        self._declined = self.parser.should_upgrade() and self._get_upgrade() not in (None, WS)
        if self._declined:
            return
        self.scope["extensions"] = self._extensions()
        super().on_headers_complete()

    def _take_authority(self) -> None:
        """Makes an absolute target a path: its authority replaces the `Host` header."""
        _, scheme, rest = self.url.partition(b"://")
        if not scheme or self.url.startswith(b"/"):
            return
        authority = _AUTHORITY.match(rest)[0]  # type: ignore[index]
        self.url = rest[len(authority) :]
        if not self.url.startswith(b"/"):
            self.url = b"/" + self.url
        self.headers[:] = [
            (name, authority if name == b"host" else value) for name, value in self.headers
        ]

    def _extensions(self) -> dict[str, dict[object, object]]:
        """The ASGI extensions for the application."""
        # `abort` drops pending bytes, for a client that reads nothing; `close` sends them first.
        ends: dict[object, object] = {
            "abort": self._abort,
            "close": self._break_off,
        }
        extensions: dict[str, dict[object, object]] = {ABORT: ends}
        if self._write_timeout is not None:
            extensions[STALL_LIMIT] = {"set_stall_factor": self._write_timeout.set_stall_factor}
        return extensions

    def _break_off(self) -> None:
        self._leave()
        self._close_after_flush()

    def _close_after_flush(self) -> None:
        self.transport.close()
        self._closing()

    def data_received(self, data: bytes) -> None:
        if self._last_error is not None:
            # Whatever follows a malformed request is not parsed.
            return
        if self._opening is not None:
            data = self._opening + data
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                self._opening = data
                return
            self._opening = None
            if data.startswith(PREFACE):
                self._switch_to_http2(data)
                return
        self._feed(data)
        if self._timer is None:
            return
        self._header_bytes += len(data)
        # The application refuses complete headers that are too large, with the same error; this
        # limit bounds incomplete ones.
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
                # Frames before the handshake is complete would be lost.
                self.send_400_response("A WebSocket's client waits for the answer first.")
            elif self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._declined:
                self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            # The parser refuses some codings before it reports the header.
            if self._coding() is None and not str(error).startswith(_CODED):
                self.send_400_response("Invalid HTTP request received.")
                return
            message = "this Transfer-Encoding is not supported: send chunked, or a Content-Length"
            self._refuse(HttpError(501, "not_implemented", message))

    def _coding(self) -> bytes | None:
        """The transfer coding of the body, if it is unknown."""
        given = [value for name, value in self.headers or () if name == b"transfer-encoding"]
        coding = b", ".join(given)
        return None if not given or coding.strip().lower() == b"chunked" else coding

    def _decline_upgrade(self, rest: bytes) -> None:
        """Handles a request as if it had not asked for another protocol.

        The parser stops after the headers of an upgrade, as if no body followed; the body would be
        parsed as the next request. So the request is parsed again without these headers.
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

    def _switch_to_http2(self, data: bytes) -> None:
        # Imported on demand: h2 takes as long to import as the rest of the server.
        from .http2 import Http2Protocol

        self._cancel_header_timer()
        self.connections.discard(self)
        state = (self.config, self.server_state, self.app_state, self.loop)
        protocol = Http2Protocol(*state, self._limits)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(data)

    def on_response_complete(self) -> None:
        was_last = not self.pipeline
        super().on_response_complete()
        if self._last_error is not None and was_last and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._close_with(self._last_error)
            return
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

    def _start_header_timer(self) -> None:
        self._header_bytes = 0
        self._timer = self.loop.call_later(self._limits.header, self._too_slow)

    def _cancel_header_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._refuse(headers_too_slow(self._limits.header))

    def send_400_response(self, msg: str) -> None:
        """Sends a parser error in the format of every other error."""
        self._refuse(HttpError(400, "invalid_request", msg))

    def _refuse(self, error: HttpError) -> None:
        """Answers a malformed request, after the responses to earlier ones, and closes. A request
        whose body is malformed is aborted.
        """
        self._cancel_header_timer()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._close_with(error)
        elif not cycle.more_body:
            self._last_error = error
        elif self.pipeline:
            # The request with this body has not been started.
            self.pipeline.popleft()
            self._last_error = error
        elif cycle.response_started:
            self._close_after_flush()
        else:
            self._leave()
            self._close_with(error)

    def _close_with(self, error: HttpError) -> None:
        self.transport.write(error_response(error))
        self._close_after_flush()


def error_response(error: HttpError) -> bytes:
    """The HTTP/1.1 response to a request that never reached the application."""
    body = error.response().body
    reason = HTTPStatus(error.status).phrase
    head = (
        f"HTTP/1.1 {error.status} {reason}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
    )
    lines = (b"%b: %b\r\n" % header for header in (*PRIVATE, CLOSE))
    return b"".join((head.encode(), *lines, b"\r\n", body))

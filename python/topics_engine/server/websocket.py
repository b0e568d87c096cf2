"""uvicorn's WebSocket protocol with limits for slow and endless clients.

uvicorn has timeouts only for pings and for the answer to its close frame. A handshake that
`websockets` cannot parse creates no event there, so no code would answer or end it.
"""

from __future__ import annotations

import asyncio
from asyncio.transports import BaseTransport
from typing import Any

import uvicorn
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidHandshake, SecurityError
from websockets.http11 import Request
from websockets.protocol import State

from ..asgi.messages import HttpError
from ..asgi.socket import WRITABLE
from .limits import Limits, WriteTimeout, headers_too_slow
from .protocol import error_response

INVALID_TEXT = 1007
TOO_SLOW = 1008
TRY_AGAIN_LATER = 1013
CLOSE_SECONDS = 10.0
"""Seconds to answer a close frame, unless the header timeout is shorter."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """Limits the handshake, messages in arrival, the output to a client that does not read, and the
    close."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self.close_timeout = min(CLOSE_SECONDS, limits.header)
        self._write_timeout: WriteTimeout = None  # type: ignore[assignment]
        self._handshake: asyncio.TimerHandle | None = None
        # Bytes of a message in arrival, and its frames that are counted in them.
        self._received = 0
        self._counted = (0, 0)
        self._message: asyncio.TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._write_timeout = WriteTimeout(
            self.loop, self.transport, self._limits.stall, unsent=self._limits.unsent
        )
        self._handshake = self.loop.call_later(self._limits.header, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_handshake_timer()
        self._write_timeout.connection_lost()
        self._drop_received()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        failure = self.conn.handshake_exc
        if failure is not None and not self.handshake_initiated:
            self._refuse(_refusal(failure))
        self._count_received()
        self._closing()

    def _count_received(self) -> None:
        """Counts what has arrived of a message that is not complete, as the body of a request."""
        if not self.handshake_initiated:
            return
        frames, size = self._counted
        if len(self.frames) < frames:
            frames, size = 0, 0
        size += sum(map(len, self.frames[frames:]))
        self._counted = len(self.frames), size
        held = size + len(self.conn.reader.buffer)
        if held > self._received and not self._limits.receiving.take(held - self._received):
            self._drop_message(TRY_AGAIN_LATER, "throttled: max_receiving_bytes; send it again")
            return
        if held < self._received:
            self._limits.receiving.give(self._received - held)
        self._received = held
        if not held:
            self._cancel_message_timer()
        elif self._message is None:
            self._message = self.loop.call_later(self._limits.body, self._message_too_slow)

    def _message_too_slow(self) -> None:
        reason = f"the message did not arrive within {self._limits.body:g} s"
        self._drop_message(TOO_SLOW, reason)

    def _drop_message(self, code: int, reason: str) -> None:
        self._drop_received()
        if self.close_sent or self.conn.state is not State.OPEN:
            self._close()
        else:
            self.conn.send_close(code, reason)
            self.handle_parser_exception()

    def _drop_received(self) -> None:
        """Releases what has arrived; the connection has ended, or is ended by the caller."""
        self._cancel_message_timer()
        self._limits.receiving.give(self._received)
        self._received, self._counted, self.frames = 0, (0, 0), []
        # The parser is part of a cycle, which would keep it for long.
        self.conn.reader.buffer.clear()

    def _cancel_message_timer(self) -> None:
        if self._message is not None:
            self._message.cancel()
            self._message = None

    def send_receive_event_to_app(self) -> None:
        # What is left of this read begins another message, which has the whole time again.
        self._cancel_message_timer()
        # uvicorn logs a traceback for each text that is not UTF-8.
        data = b"".join(self.frames)
        self.frames = []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            try:
                self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
            except UnicodeDecodeError:
                self.conn.send_close(INVALID_TEXT)
                self.handle_parser_exception()
                return
        else:
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _too_slow(self) -> None:
        self._refuse(headers_too_slow(self._limits.header))

    def _refuse(self, error: HttpError) -> None:
        """Answers a failed handshake."""
        self._cancel_handshake_timer()
        if self.transport.is_closing():
            return
        if self.initial_response is None:
            self.transport.write(error_response(error))
        # Tells the application, if it has started.
        self.close_sent = self.handshake_complete = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self._close()

    def _cancel_handshake_timer(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def pause_writing(self) -> None:
        # Pongs would pile up for a client that only sends.
        super().pause_writing()
        self._write_timeout.pause_writing()
        self._pause_reading_if_full()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_timeout.resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _pause_reading_if_full(self) -> None:
        if not self.writable.is_set() and not self.transport.is_closing():
            self.transport.pause_reading()

    def handle_connect(self, event: Request) -> None:
        # uvicorn answers a handshake that it refuses with plain text.
        response = self.conn.accept(event)
        if response.status_code != 101:
            self.handshake_initiated = True
            self._refuse(
                _refusal(self.conn.handshake_exc or InvalidHandshake(response.reason_phrase))
            )
            return
        super().handle_connect(event)
        self.scope["extensions"] |= {WRITABLE: {"wait": self.writable.wait}}

    async def send(self, message: ASGISendEvent) -> None:
        await self.writable.wait()
        if self.close_sent and self.initial_response is None:
            # The connection was closed meanwhile, which the application does not know yet.
            raise ClientDisconnected
        await super().send(message)
        if self.handshake_complete:
            self._cancel_handshake_timer()
        if message["type"] == "websocket.close" and self.close_timer is not None:
            # uvicorn's own timer closes the transport, but does not watch the rest of the close.
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(self.close_timeout, self._close)
        self._pause_reading_if_full()
        self._closing()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        self._pause_reading_if_full()
        return message

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._closing()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._closing()

    def shutdown(self) -> None:
        if self.close_sent or not self.handshake_complete or self.conn.state is State.OPEN:
            super().shutdown()
        else:
            # The client has sent its close frame: the server must not send another.
            self.stop_keepalive()
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._closing()

    def _closing(self) -> None:
        self._write_timeout.transport_closing()


def _refusal(failure: Exception) -> HttpError:
    if isinstance(failure, InvalidHandshake) and not isinstance(failure, SecurityError):
        message = f"this is not a WebSocket handshake: {failure.__cause__ or failure}"
        return HttpError(400, "invalid_request", message)
    return HttpError(
        431, "headers_too_large", f"the headers of the WebSocket handshake are too large: {failure}"
    )

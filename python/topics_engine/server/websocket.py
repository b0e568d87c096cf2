"""uvicorn's WebSocket protocol, bounded where a client sends or takes slowly or without end.

uvicorn times only the answer to its own close frame and pings. A handshake that `websockets` cannot
parse makes no event there, so nothing would ever answer or end it.
"""

from __future__ import annotations

import asyncio
from asyncio.transports import BaseTransport
from typing import Any

import uvicorn
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidMessage
from websockets.protocol import State

from ..asgi.messages import HttpError
from .limits import Limits, WriteTimeout, headers_too_slow
from .protocol import error_response

CLOSE_SECONDS = 10.0
"""How long a client may take to answer a close frame, unless its headers have less time."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """The handshake ends within a time, a client that does not read is not read from, and a
    connection that closes is closed.
    """

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

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._write_timeout = WriteTimeout(self.loop, self.transport, self._limits.stall)
        self._handshake = self.loop.call_later(self._limits.header, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshake_is_over()
        self._write_timeout.connection_lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        failure = self.conn.handshake_exc
        if failure is not None and not self.handshake_initiated:
            self._refuse(_refusal(failure))
        self._closing()

    def _too_slow(self) -> None:
        self._refuse(headers_too_slow(self._limits.header))

    def _refuse(self, error: HttpError) -> None:
        """Answers what never became a WebSocket."""
        self._handshake_is_over()
        if self.transport.is_closing():
            return
        if self.initial_response is None:
            self.transport.write(error_response(error))
        # The application, if it has begun, is told.
        self.close_sent = self.handshake_complete = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self._close()

    def _handshake_is_over(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def pause_writing(self) -> None:
        # Pongs would pile up behind a client that only sends.
        super().pause_writing()
        self._write_timeout.pause_writing()
        self._hold_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_timeout.resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _hold_reading(self) -> None:
        if not self.writable.is_set() and not self.transport.is_closing():
            self.transport.pause_reading()

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.handshake_complete:
            self._handshake_is_over()
        if message["type"] == "websocket.close" and self.close_timer is not None:
            # uvicorn's own timer closes the transport, and nobody would see to its end.
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(self.close_timeout, self._close)
        self._hold_reading()
        self._closing()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        self._hold_reading()
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
            # The client has said goodbye: there is no other to be sent.
            self.stop_keepalive()
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._closing()

    def _closing(self) -> None:
        self._write_timeout.transport_closing()


def _refusal(failure: Exception) -> HttpError:
    if isinstance(failure, InvalidMessage):
        message = f"this is not a WebSocket handshake: {failure.__cause__ or failure}"
        return HttpError(400, "invalid_request", message)
    return HttpError(
        431, "headers_too_large", f"the headers of the WebSocket handshake are too large: {failure}"
    )

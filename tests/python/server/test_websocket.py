"""The server's WebSocket protocol, driven by hand: what it counts, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from unittest.mock import MagicMock

import uvicorn
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from topics_engine.asgi.limiter import ByteBudget
from topics_engine.server.limits import Limits
from topics_engine.server.websocket import BoundedWebSocket

HANDSHAKE = (
    b"GET /v0/ws HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nsec-websocket-version: 13\r\n\r\n"
)


def text(data: bytes) -> bytes:
    return Frame(Opcode.TEXT, data).serialize(mask=True)


async def application(scope: object, receive: object, send: object) -> None:
    del scope, receive, send
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def connected(budget: ByteBudget) -> BoundedWebSocket:
    """A connection whose handshake is accepted."""
    config = uvicorn.Config(application, ws_per_message_deflate=False, log_config=None)
    config.load()
    limits = Limits(receiving=budget)
    socket = BoundedWebSocket(config, ServerState(), {}, limits=limits)
    transport = MagicMock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    transport.get_extra_info.return_value = None
    socket.connection_made(transport)
    socket.data_received(HANDSHAKE)
    await socket.send({"type": "websocket.accept", "subprotocol": None, "headers": []})
    return socket


def test_each_message_has_its_own_time_to_arrive() -> None:
    async def main() -> None:
        budget = ByteBudget("max_receiving_bytes", 1 << 20)
        socket = await connected(budget)
        # Each read ends a message and begins the next: never is there a read that leaves nothing.
        whole = text(b"x" * 100)
        socket.data_received(whole[:10])
        timers = []
        for _ in range(3):
            timer = socket._message
            assert timer is not None
            timers.append(timer)
            socket.data_received(whole[10:] + whole[:10])
        assert [timer.cancelled() for timer in timers] == [True] * 3
        assert socket._message is not None
        assert not socket._message.cancelled()
        assert budget.taken == 4, "what follows the header of the frame"
        socket.data_received(whole[10:])
        assert socket._message is None
        assert budget.taken == 0
        socket.connection_lost(None)

    asyncio.run(main())

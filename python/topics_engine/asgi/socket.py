"""The WebSocket: text messages in and out. The core interprets them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import _core
from .bridge import LoopBridge
from .keys import Client
from .messages import PRIVATE, HttpError, Receive, Scope, Send
from .streaming import END, FULL, MORE, send_pieces

DENIED_SECONDS = 0.2
REVOKED = '{"op":"error","code":"unauthorized","message":"the key of this socket was revoked"}'
GOING_AWAY, UNSUPPORTED_DATA, POLICY_VIOLATION = 1001, 1003, 1008
WRITABLE = "topics.writable"
"""ASGI extension: `wait` returns when the connection takes a message without keeping another."""


@dataclass(frozen=True, slots=True)
class Output:
    """How a socket sends: each message within `stall` seconds."""

    send: Send
    stall: float
    unsent: _core.UnsentBytes
    extensions: dict[str, Any]

    async def message(self, text: bytes) -> None:
        """Sends a text message."""
        async with asyncio.timeout(self.stall):
            await self.send({"type": "websocket.send", "text": text.decode()})

    async def writable(self) -> None:
        """Waits until the client has taken enough of the messages before."""
        if (extension := self.extensions.get(WRITABLE)) is not None:
            async with asyncio.timeout(self.stall):
                await extension["wait"]()


async def deny(scope: Scope, receive: Receive, send: Send, error: HttpError) -> None:
    """Refuses a handshake, with the same body as any other refusal."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})
        return
    response = error.response()
    headers = [(b"content-type", response.content_type), *PRIVATE, *response.headers]
    start = {"type": "websocket.http.response.start", "status": response.status}
    await send({**start, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.body})
    # uvicorn logs an unfinished handshake if the application returns before the connection ends.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DENIED_SECONDS):
            # The end of the denial, then of the connection.
            await receive()
            await receive()


async def serve_socket(
    bridge: LoopBridge,
    token: int,
    client: Client,
    receive: Receive,
    output: Output,
    revoked: asyncio.Future[None],
    sending: Callable[[bytes], None],
) -> None:
    """Serves a socket until the client leaves or its key is revoked. Calls `sending` with each
    message to the client.

    A message is received only when all pending output was sent, so a client that does not read is
    not read from.
    """
    send = output.send
    wake = bridge.wake_of(token)
    revoked.add_done_callback(lambda _: wake.set())
    incoming = _next(receive, wake.set)
    try:
        while True:
            if revoked.done():
                await output.message(REVOKED.encode())
                close = {
                    "type": "websocket.close",
                    "code": POLICY_VIOLATION,
                    "reason": "unauthorized",
                }
                await send(close)
                return
            after = await _send_all(bridge, token, output, sending)
            if after == END:
                await send({"type": "websocket.close", "code": GOING_AWAY})
                return
            if incoming.done() and incoming.result()["type"] == "websocket.disconnect":
                return
            if after == FULL or not incoming.done():
                await wake.wait()
                continue
            message = incoming.result()
            text = message.get("text")
            if text is None:
                await send(
                    {"type": "websocket.close", "code": UNSUPPORTED_DATA, "reason": "send text"}
                )
                return
            scopes = "read" in client.scopes, "write" in client.scopes
            await bridge.message(token, text.encode("utf-8", "surrogatepass"), *scopes)
            incoming = _next(receive, wake.set)
    except TimeoutError:
        await send(
            {"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "nothing was read"}
        )
    finally:
        incoming.cancel()
        bridge.cancel_call(token)


def _next(receive: Receive, wake: Any) -> asyncio.Future[Any]:
    incoming = asyncio.ensure_future(receive())
    incoming.add_done_callback(lambda _: wake())
    return incoming


async def _send_all(
    bridge: LoopBridge, token: int, output: Output, sending: Callable[[bytes], None]
) -> int:
    """Sends pending output; returns `END` after the last message, `FULL` when there is no room for
    more, `WAIT` when there is no more.
    """

    async def send(piece: bytes) -> None:
        sending(piece)
        await output.message(piece)

    after = MORE
    while after == MORE:
        # The client's events stay in the engine until it reads; here they would be copies.
        await output.writable()
        pulled = await bridge.pull(token)
        if pulled is None:
            return END
        pieces, after = pulled
        await send_pieces(pieces, output.unsent, send)
    return after

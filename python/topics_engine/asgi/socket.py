"""The WebSocket: text messages in and out. The core interprets them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from .bridge import LoopBridge
from .keys import Client
from .messages import PRIVATE, HttpError, Receive, Scope, Send
from .streaming import END, MORE

DENIED_SECONDS = 0.2
REVOKED = '{"op":"error","code":"unauthorized","message":"the key of this socket was revoked"}'
GOING_AWAY, UNSUPPORTED_DATA, POLICY_VIOLATION = 1001, 1003, 1008


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
    send: Send,
    stall: float,
    revoked: asyncio.Future[None],
    sending: Callable[[bytes], None],
) -> None:
    """Serves a socket until the client leaves or its key is revoked. Calls `sending` with each
    message to the client.

    A message is received only when all pending output was sent, so a client that does not read is
    not read from.
    """
    wake = bridge.wake_of(token)
    revoked.add_done_callback(lambda _: wake.set())
    incoming = _next(receive, wake.set)
    try:
        while True:
            if revoked.done():
                async with asyncio.timeout(stall):
                    await send({"type": "websocket.send", "text": REVOKED})
                close = {
                    "type": "websocket.close",
                    "code": POLICY_VIOLATION,
                    "reason": "unauthorized",
                }
                await send(close)
                return
            if not await _send_all(bridge, token, send, stall, sending):
                await send({"type": "websocket.close", "code": GOING_AWAY})
                return
            if not incoming.done():
                await wake.wait()
                continue
            message = incoming.result()
            if message["type"] == "websocket.disconnect":
                return
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
    bridge: LoopBridge, token: int, send: Send, stall: float, sending: Callable[[bytes], None]
) -> bool:
    """Sends pending output; returns False after the last message."""
    after = MORE
    while after == MORE:
        pulled = bridge.pull(token)
        if pulled is None:
            return False
        pieces, after = pulled
        for piece in pieces:
            sending(piece)
            async with asyncio.timeout(stall):
                await send({"type": "websocket.send", "text": piece.decode()})
    return after != END

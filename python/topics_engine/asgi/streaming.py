"""Answers without end: the core makes the bytes, the connection takes them as it can."""

from __future__ import annotations

import asyncio

from .bridge import LoopBridge
from .messages import Header, Request, Send

STALL_SECONDS = 30.0
"""A client that takes nothing for so long is let go."""
HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
ABORT = "topics.abort"
MORE, WAIT, END = 0, 1, 2


class Stalled(Exception):
    """The client takes nothing."""


async def send_events(
    bridge: LoopBridge,
    token: int,
    opening: bytes,
    request: Request,
    send: Send,
    extra: list[Header],
) -> None:
    """Sends a stream until it ends, its client goes, or takes nothing any more."""
    # The body of a GET is passed over: what comes next is the client's leaving.
    gone = asyncio.ensure_future(request.disconnected())
    wake = bridge.wake_of(token)
    gone.add_done_callback(lambda _: wake.set())
    try:
        headers = [*HEADERS, *extra]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send(send, opening)
        while not gone.done():
            pulled = bridge.pull(token)
            if pulled is None:
                break
            pieces, after = pulled
            for piece in pieces:
                await _send(send, piece)
            if after == END:
                break
            if after == WAIT:
                await wake.wait()
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except Stalled:
        abort(request)
    finally:
        gone.cancel()
        bridge.give_up(token)


async def _send(send: Send, piece: bytes) -> None:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        raise Stalled from None


def abort(request: Request) -> None:
    """Ends a connection whose client takes nothing, where the server offers that."""
    offered = request.scope.get("extensions") or {}
    if ABORT in offered:
        offered[ABORT]["abort"]()

"""Answers without end: the core makes the bytes, the connection takes them as it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from .bridge import LoopBridge, Wake
from .messages import Header, Request, Send

HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
ABORT = "topics.abort"
PUMP = "topics.pump"
MORE, WAIT, END = 0, 1, 2


class Closing(Protocol):
    """What writes a stream, until it is closed."""

    def close(self) -> None: ...


class Stalled(Exception):
    """The client takes nothing."""


async def send_events(
    bridge: LoopBridge,
    token: int,
    opening: bytes,
    request: Request,
    send: Send,
    extra: list[Header],
    stall: float,
) -> None:
    """Sends a stream until it ends, its client goes, or takes nothing for `stall` seconds."""
    # The body of a GET is passed over: what comes next is the client's leaving.
    gone = asyncio.ensure_future(request.disconnected())
    wake = bridge.wake_of(token)
    gone.add_done_callback(lambda _: wake.set())
    try:
        headers = [*HEADERS, *extra]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send(send, opening, stall)
        pump = (request.scope.get("extensions") or {}).get(PUMP)
        if pump is None:
            await _pull(bridge, token, send, gone, wake, stall)
        else:
            await _pumped(bridge, token, pump["begin"], gone)
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except Stalled:
        abort(request)
    finally:
        gone.cancel()
        bridge.give_up(token)


async def _pull(
    bridge: LoopBridge,
    token: int,
    send: Send,
    gone: asyncio.Future[None],
    wake: Wake,
    stall: float,
) -> None:
    while not gone.done():
        pulled = bridge.pull(token)
        if pulled is None:
            break
        pieces, after = pulled
        for piece in pieces:
            await _send(send, piece, stall)
        if after == END:
            break
        if after == WAIT:
            await wake.wait()


async def _pumped(
    bridge: LoopBridge,
    token: int,
    begin: Callable[..., Closing],
    gone: asyncio.Future[None],
) -> None:
    """The connection's server writes the stream; it also ends a client that takes nothing."""
    ended = asyncio.Event()
    pump = bridge.pump(begin, token, ended.set)
    gone.add_done_callback(lambda _: ended.set())
    try:
        await ended.wait()
    finally:
        pump.close()


async def _send(send: Send, piece: bytes, stall: float) -> None:
    try:
        async with asyncio.timeout(stall):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        raise Stalled from None


def abort(request: Request) -> None:
    """Ends a connection whose client takes nothing, where the server offers that."""
    offered = request.scope.get("extensions") or {}
    if ABORT in offered:
        offered[ABORT]["abort"]()

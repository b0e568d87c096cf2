"""Answers without end: the core makes the bytes, the connection takes them as it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from .bridge import LoopBridge, Wake
from .messages import ARROW, EVENTS, Header, Request, Send

HEADERS: dict[bytes, tuple[Header, ...]] = {
    EVENTS: (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ),
    ARROW: ((b"content-type", ARROW), (b"cache-control", b"no-store")),
}
PATIENCE = 10
"""How many times as long a range waits for its client, who may work on what he has; it holds
little meanwhile."""
ABORT = "topics.abort"
WAITING = "topics.waiting"
"""A server's own limit of how long a client may take nothing, in times of the usual."""
PUMP = "topics.pump"
MORE, WAIT, END, FAIL = 0, 1, 2, 3


class Closing(Protocol):
    """What writes a stream, until it is closed."""

    def close(self) -> None: ...


class Stalled(Exception):
    """The client takes nothing."""


async def send_stream(
    bridge: LoopBridge,
    token: int,
    opening: bytes,
    request: Request,
    send: Send,
    kind: bytes,
    extra: list[Header],
    stall: float,
) -> None:
    """Sends a stream until it ends, its client goes, or takes nothing for `stall` seconds."""
    # The body has been read, or is passed over: what comes next is the client's leaving.
    gone = asyncio.ensure_future(request.disconnected())
    wake = bridge.wake_of(token)
    gone.add_done_callback(lambda _: wake.set())
    try:
        headers = [*HEADERS[kind], *extra]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if kind != EVENTS:
            stall *= PATIENCE
            own = (request.scope.get("extensions") or {}).get(WAITING)
            if own is not None:
                own["patience"](PATIENCE)
        await _send(send, opening, stall)
        pump = (request.scope.get("extensions") or {}).get(PUMP)
        if pump is None or kind != EVENTS:
            if not await _pull(bridge, token, send, gone, wake, stall) and abort(request):
                # Whoever looks only at the framing of the response sees it, too.
                return
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
) -> bool:
    """Whether the stream has not failed."""
    while not gone.done():
        pulled = bridge.pull(token)
        if pulled is None:
            break
        pieces, after = pulled
        for piece in pieces:
            await _send(send, piece, stall)
        if after in (END, FAIL):
            return after == END
        if after == WAIT:
            await wake.wait()
    return True


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


def abort(request: Request) -> bool:
    """Ends a connection before its response has ended, where the server offers that."""
    offered = request.scope.get("extensions") or {}
    if ABORT not in offered:
        return False
    offered[ABORT]["abort"]()
    return True

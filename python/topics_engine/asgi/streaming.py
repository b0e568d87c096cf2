"""Answers without end: the core makes the bytes, the connection takes them as it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal, Protocol

from .bridge import LoopBridge, Wake
from .messages import ARROW, EVENTS, Header, Request, Send

log = logging.getLogger("topics_engine.asgi")

HEADERS: dict[bytes, tuple[Header, ...]] = {
    EVENTS: (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ),
    ARROW: ((b"content-type", ARROW), (b"cache-control", b"no-store")),
}
SCAN_STALL_FACTOR = 10
"""How many times as long a range waits for its client, who may work on what he has; it holds
little meanwhile."""
ABORT = "topics.abort"
STALL_LIMIT = "topics.stall_limit"
"""A server's own limit of how long a client may take nothing, in times of the usual."""
PUMP = "topics.pump"
MORE, WAIT, END, FAIL = 0, 1, 2, 3


REVOKED = (
    b"event: error\ndata: "
    b'{"code":401,"error":"unauthorized","message":"the key of this stream was revoked"}\n\n'
)
"""The last event of a stream whose key is not valid any more."""


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
    revoked: asyncio.Future[None],
) -> None:
    """Sends a stream until it ends, its client goes, its key is revoked, or nothing is taken for
    `stall` seconds."""
    # The body has been read, or is passed over: what comes next is the client's leaving.
    gone = asyncio.ensure_future(request.disconnected())
    wake = bridge.wake_of(token)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not over.done():
            over.set_result(None)
        wake.set()

    gone.add_done_callback(end)
    revoked.add_done_callback(end)
    try:
        headers = [*HEADERS[kind], *extra]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if kind != EVENTS:
            stall *= SCAN_STALL_FACTOR
            own = (request.scope.get("extensions") or {}).get(STALL_LIMIT)
            if own is not None:
                own["set_stall_factor"](SCAN_STALL_FACTOR)
        if opening:
            await _send(send, opening, stall)
        pump = (request.scope.get("extensions") or {}).get(PUMP)
        if pump is None:
            whole = await _pull(bridge, token, send, over, wake, stall)
        else:
            whole = await _pumped(bridge, token, pump["begin"], over)
        if revoked.done() and kind == EVENTS and not gone.done():
            await _send(send, REVOKED, stall)
        if not whole and kind == ARROW and not gone.done():
            # The client learns it when it asks for the rest.
            why = "its key was revoked" if revoked.done() else bridge.failure(token)
            log.warning("%s breaks off: %s", request.scope["path"], why)
            # Whoever looks only at the framing of the response sees it, too.
            if end_connection(request, "close"):
                return
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except Stalled:
        end_connection(request, "abort")
    finally:
        gone.cancel()
        bridge.cancel_call(token)


async def _pull(
    bridge: LoopBridge,
    token: int,
    send: Send,
    over: asyncio.Future[None],
    wake: Wake,
    stall: float,
) -> bool:
    """Whether the stream came to its end."""
    while not over.done():
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
    return False


async def _pumped(
    bridge: LoopBridge,
    token: int,
    begin: Callable[..., Closing],
    over: asyncio.Future[None],
) -> bool:
    """The connection's server writes the stream, and ends a client that takes nothing; whether it
    came to its end."""
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(whole: bool) -> None:
        if not ended.done():
            ended.set_result(whole)

    pump = bridge.pump(begin, token, end)
    over.add_done_callback(lambda _: end(False))
    try:
        return await ended
    finally:
        pump.close()


async def _send(send: Send, piece: bytes, stall: float) -> None:
    try:
        async with asyncio.timeout(stall):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        raise Stalled from None


def end_connection(request: Request, how: Literal["abort", "close"]) -> bool:
    """Ends a connection before its response has ended, where the server offers that: at once, or
    behind what was sent."""
    offered = request.scope.get("extensions") or {}
    if ABORT not in offered:
        return False
    offered[ABORT][how]()
    return True

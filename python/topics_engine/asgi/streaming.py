"""Streamed responses: the core produces the bytes, the connection sends them at its client's
pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from .. import _core
from .bridge import LoopBridge, Wake
from .messages import ARROW, EVENTS, PRIVATE, Header, Request, Send

log = logging.getLogger("topics_engine.asgi")

HEADERS: dict[bytes, tuple[Header, ...]] = {
    EVENTS: (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        *PRIVATE,
        (b"x-accel-buffering", b"no"),
    ),
    ARROW: ((b"content-type", ARROW), *PRIVATE),
}
SCAN_STALL_FACTOR = 10
"""The stall timeout of a range, as a multiple of the setting: its client may process what it has,
and the server holds little meanwhile."""
ABORT = "topics.abort"
STALL_LIMIT = "topics.stall_limit"
"""ASGI extension: sets the server's stall timeout, as a multiple of the default."""
PUMP = "topics.pump"
MORE, WAIT, END, FAIL, FULL = 0, 1, 2, 3, 4


REVOKED = (
    b"event: error\ndata: "
    b'{"code":401,"error":"unauthorized","message":"the key of this stream was revoked"}\n\n'
)
"""The last event of a stream whose key was revoked."""

CANCELLED = (
    b"event: error\ndata: "
    b'{"code":503,"error":"shutting_down","message":"the server is shutting down"}\n\n'
)
"""The last event of a stream that the server cancels, where no signal came before."""
CANCELLED_SECONDS = 1.0
FLUSH_TICKS = 3
"""Ticks of the loop in which a server that is ending still writes what it was given."""


class Closing(Protocol):
    """A stream writer that can be closed."""

    def close(self) -> None: ...


class Stalled(Exception):
    """The client has read nothing for too long."""


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
    unsent: _core.UnsentBytes,
) -> None:
    """Sends a stream until it ends, the client disconnects, its key is revoked, or the client reads
    nothing for `stall` seconds.
    """
    # The body was read or is ignored: the next message is the disconnect.
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
            whole = await _pull(bridge, token, send, over, wake, stall, unsent)
        else:
            whole = await _pumped(bridge, token, pump["begin"], over)
        if revoked.done() and kind == EVENTS and not gone.done():
            await _send(send, bridge.take_rest(token) + REVOKED, stall)
        if not whole and kind == ARROW and not gone.done():
            # The client gets the reason when it requests the rest.
            why = "its key was revoked" if revoked.done() else bridge.failure(token)
            log.warning("%s breaks off: %s", request.scope["path"], why)
            # An incomplete response also shows in its framing.
            if end_connection(request, "close"):
                return
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except Stalled:
        end_connection(request, "abort")
    except asyncio.CancelledError:
        if kind == EVENTS and not gone.done():
            with contextlib.suppress(Exception):
                await _send(send, bridge.take_rest(token) + CANCELLED, CANCELLED_SECONDS)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                for _ in range(FLUSH_TICKS):
                    await asyncio.sleep(0)
        raise
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
    unsent: _core.UnsentBytes,
) -> bool:
    """Pulls and sends a stream; returns whether it is complete."""
    while not over.done():
        pulled = await bridge.pull(token)
        if pulled is None:
            break
        pieces, after = pulled
        del pulled
        await send_pieces(pieces, unsent, lambda piece: _send(send, piece, stall))
        if after in (END, FAIL):
            return after == END
        if after in (WAIT, FULL):
            await wake.wait()
    return False


async def send_pieces(
    pieces: list[bytes], unsent: _core.UnsentBytes, send: Callable[[bytes], Awaitable[None]]
) -> None:
    """Sends pieces one after the other, and counts those that are not sent yet. The list is empty
    afterwards.
    """
    left = sum(map(len, pieces))
    unsent.take(left)
    try:
        while pieces:
            size = len(pieces[0])
            await send(pieces.pop(0))
            unsent.give(size)
            left -= size
    finally:
        unsent.give(left)


async def _pumped(
    bridge: LoopBridge,
    token: int,
    begin: Callable[..., Closing],
    over: asyncio.Future[None],
) -> bool:
    """Has the server write a stream; returns whether it is complete."""
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
    """Ends the connection in the middle of a response, if the server supports it: immediately
    (`abort`), or after pending bytes were sent (`close`).
    """
    offered = request.scope.get("extensions") or {}
    if ABORT not in offered:
        return False
    offered[ABORT][how]()
    return True

"""Answers without end: the core makes the bytes, the connection takes them as it can."""

from __future__ import annotations

import asyncio

from .bridge import LoopBridge
from .messages import ARROW, EVENTS, Header, Request, Send

STALL_SECONDS = 30.0
"""A client that takes nothing for so long is let go."""
PATIENT_SECONDS = 300.0
"""The same for a range: whoever reads it may work on what he has, and a scan holds little."""
HEADERS: dict[bytes, tuple[Header, ...]] = {
    EVENTS: (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ),
    ARROW: ((b"content-type", ARROW), (b"cache-control", b"no-store")),
}
ABORT = "topics.abort"
MORE, WAIT, END, FAIL = 0, 1, 2, 3


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
) -> None:
    """Sends a stream until it ends, its client goes, or takes nothing any more."""
    patience = STALL_SECONDS if kind == EVENTS else PATIENT_SECONDS
    # The body has been read, or is passed over: what comes next is the client's leaving.
    gone = asyncio.ensure_future(request.disconnected())
    wake = bridge.wake_of(token)
    gone.add_done_callback(lambda _: wake.set())
    try:
        headers = [*HEADERS[kind], *extra]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send(send, opening, patience)
        while not gone.done():
            pulled = bridge.pull(token)
            if pulled is None:
                break
            pieces, after = pulled
            for piece in pieces:
                await _send(send, piece, patience)
            if after == FAIL and abort(request):
                # Whoever looks only at the framing of the response sees it, too.
                return
            if after in (END, FAIL):
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


async def _send(send: Send, piece: bytes, patience: float) -> None:
    try:
        async with asyncio.timeout(patience):
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

"""What uvicorn is given as its protocol: hot requests are answered natively.

The native protocol may only be faster than the application, never different. At the first request
that is anything but plainly hot a connection becomes a `PumpedProtocol`, and stays one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from .. import _core
from ..asgi import App, Settings
from ..asgi.access import KeyGuard, LoopbackGuard, OpenGuard
from ..asgi.bridge import CoreHttp, LoopBridge
from ..asgi.messages import body_too_slow
from ..asgi.routes import ROUTES
from ..asgi.slots import Slots
from .limits import (
    GOODBYE_SECONDS,
    MIN_BYTES_PER_SECOND,
    Limits,
    headers_too_slow,
    unsent,
)
from .protocol import farewell
from .pumped import PumpedProtocol

Admit = Callable[[str, bytes], tuple[int, str] | None]


class HotProtocols:
    """Makes the protocol of each connection; one dispatcher decides for all of them what is hot."""

    def __init__(self, app: App, settings: Settings) -> None:
        limits = self._limits = Limits.of(settings)
        body_seconds = settings.body_timeout_ms / 1000
        # Timeouts are counted in ticks, so that no request sets a timer.
        ticks = (body_seconds, limits.header, limits.idle)
        self._tick = max(0.01, min(1.0, min(ticks) / 4))
        self._dispatcher = _core.HotDispatcher(
            status_lines=STATUS_LINE,
            loopback=isinstance(app.guard, LoopbackGuard),
            max_body=settings.max_body_bytes or sys.maxsize,
            receiving=app.receiving,
            timeouts=tuple(  # type: ignore[arg-type]
                round(seconds / self._tick) for seconds in (*ticks, GOODBYE_SECONDS)
            ),
            drain=(
                round(limits.stall / self._tick),
                max(1, round(MIN_BYTES_PER_SECOND * self._tick)),
            ),
            unacked_bytes=unsent,
            too_slow_head=farewell(headers_too_slow(limits.header)),
            too_slow_body=body_too_slow(body_seconds).response().body,
            keys=self._keys(app),
        )
        self._ticking = False
        # A guard that nobody here knows has the application to itself.
        if isinstance(app.guard, LoopbackGuard | OpenGuard | KeyGuard):
            app.life.on_ready = self._open
            app.life.on_shutdown = self._dispatcher.disable

    @staticmethod
    def _keys(app: App) -> tuple[Admit, Slots] | None:
        """Who says which requests a key may make, and who counts them."""
        guard, slots = app.guard, app.in_flight
        if not isinstance(guard, KeyGuard):
            return None
        routes = {route.verb: route for route in ROUTES}

        def admit(verb: str, authorization: bytes) -> tuple[int, str] | None:
            client = guard.admit(routes[verb], authorization)
            if client is None or slots.is_full(client.label):
                return None
            return client.grant, client.label

        return admit, slots

    def _open(self, http: CoreHttp, bridge: LoopBridge) -> None:
        assert isinstance(http, _core.Http)
        self._dispatcher.enable(http, bridge.flush_soon)

    def __call__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> _core.Connection:
        """The protocol of a new connection, with the arguments of uvicorn's own."""
        loop = _loop or asyncio.get_running_loop()
        if not self._ticking:
            self._ticking = True
            loop.call_later(self._tick, self._sweep, loop)
        state = (config, server_state, app_state, loop)

        def complete(fresh: bool) -> PumpedProtocol:
            return PumpedProtocol(*state, limits=self._limits, fresh=fresh)

        return _core.Connection(self._dispatcher, complete, server_state)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(self._tick, self._sweep, loop)
        self._dispatcher.check_timeouts()

"""The protocol that uvicorn gets: the native module answers hot requests.

The native protocol must never answer differently from the application. At the first request that is
not plainly hot, a connection becomes a `NativeStreamProtocol`, and stays one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from .. import _core
from ..asgi import App, Settings
from ..asgi.access import KeyGuard, LoopbackGuard, OpenGuard
from ..asgi.bridge import CoreHttp, LoopBridge
from ..asgi.limiter import Limiter
from ..asgi.messages import body_too_slow
from ..asgi.metrics import BOUNDS_NS
from ..asgi.routes import ROUTES
from ..asgi.streaming import PUMP
from .limits import (
    CLOSE_LINGER,
    MIN_BYTES_PER_SECOND,
    ROOM_BYTES,
    ROOM_SECONDS,
    Limits,
    headers_too_slow,
    unacked_bytes,
)
from .protocol import BoundedProtocol, error_response

Admit = Callable[[str, bytes], tuple[int, str] | None]
Refused = Callable[[str, str, str, bytes, asyncio.Transport], None]


class HotProtocols:
    """Creates the protocol of each connection; one dispatcher decides which requests are hot."""

    def __init__(self, app: App, settings: Settings, limits: Limits) -> None:
        self._limits = limits
        # Timeouts are counted in ticks of one timer, so that requests need no timers.
        ticks = (limits.body, limits.header, limits.idle)
        self._tick = max(0.01, min(1.0, min(ticks) / 4))
        self._dispatcher = _core.HotDispatcher(
            status_lines=STATUS_LINE,
            loopback=isinstance(app.guard, LoopbackGuard),
            max_body=settings.max_body_bytes or sys.maxsize,
            receiving=app.receiving,
            unsent=app.unsent,
            timeouts=tuple(  # type: ignore[arg-type]
                round(seconds / self._tick) for seconds in (*ticks, CLOSE_LINGER)
            ),
            drain=(
                round(limits.stall / self._tick),
                max(1, round(MIN_BYTES_PER_SECOND * self._tick)),
            ),
            room=(max(1, round(ROOM_SECONDS / self._tick)), ROOM_BYTES),
            unacked_bytes=unacked_bytes,
            too_slow_head=error_response(headers_too_slow(limits.header)),
            too_slow_body=body_too_slow(limits.body).response().body,
            bounds_ns=BOUNDS_NS,
            keys=self._keys(app),
        )
        app.metrics.native = self._dispatcher.counts
        self._ticking = False
        # Requests under an unknown kind of guard all go to the application.
        if isinstance(app.guard, LoopbackGuard | OpenGuard | KeyGuard):
            app.lifespan.on_ready = self._open
            app.lifespan.on_shutdown = self._dispatcher.disable

    @staticmethod
    def _keys(app: App) -> tuple[Admit, Limiter, Refused] | None:
        """The function that admits API keys, the limiter that counts their requests, and the
        function that records the requests that a key does not allow.
        """
        guard, slots = app.guard, app.in_flight
        if not isinstance(guard, KeyGuard):
            return None
        routes = {route.verb: route for route in ROUTES}

        def admit(verb: str, authorization: bytes) -> tuple[int, str] | None:
            client = guard.admit(routes[verb], authorization)
            if client is None or slots.is_full(client.label):
                return None
            return client.grant, client.label

        def refused(
            verb: str, name: str, label: str, request_id: bytes, transport: asyncio.Transport
        ) -> None:
            # A request with `X-Forwarded-For` is left to the application.
            peer = get_remote_addr(transport)
            address = peer[0] if peer else ""
            app.audit.record_native(routes[verb], name, label, request_id, address)

        return admit, slots, refused

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
        """Creates the protocol of a connection; the arguments are those of uvicorn's protocol."""
        loop = _loop or asyncio.get_running_loop()
        if not self._ticking:
            self._ticking = True
            loop.call_later(self._tick, self._sweep, loop)
        state = (config, server_state, app_state, loop)

        def complete(fresh: bool) -> NativeStreamProtocol:
            return NativeStreamProtocol(*state, limits=self._limits, fresh=fresh)

        return _core.Connection(self._dispatcher, complete, server_state)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(self._tick, self._sweep, loop)
        self._dispatcher.check_timeouts()


class NativeStreamProtocol(BoundedProtocol):
    """uvicorn's protocol with streams that the native module writes.

    The application answers a request for a stream as usual. Once the head is sent, events go from
    the engine to the transport without a task of the loop for each.
    """

    _pump: _core.StreamWriter | None = None

    def _extensions(self) -> dict[str, dict[object, object]]:
        return {**super()._extensions(), PUMP: {"begin": self._begin}}

    def _begin(
        self, http: _core.Http, token: int, ended: Callable[[bool], object]
    ) -> _core.StreamWriter:
        """Starts the writer of a stream whose head has been sent."""
        pump = self._pump = _core.StreamWriter(http, token, self.transport, ended)
        if self.flow.write_paused:
            pump.pause()
        pump.begin()
        return pump

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._pump is not None:
            self._pump.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pump is not None:
            self._pump.resume()

"""The application: match the route, check the client, hand raw bytes to the core, send its bytes.

Python never looks into a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Callable
from typing import Any

from .access import Guard
from .bridge import Answer, LoopBridge
from .life import Life
from .messages import (
    JSON,
    Disconnected,
    Header,
    HttpError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    respond,
)
from .routes import Route, Router, decode_name, raw_path
from .settings import Settings

log = logging.getLogger("topics_engine.asgi")

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class App:
    """A plain ASGI 3 application over one engine.

    The life of the engine follows the ASGI lifespan. A server that does not speak lifespan gets the
    engine opened at the first request.
    """

    def __init__(self, life: Life, guard: Guard, settings: Settings) -> None:
        self.life = life
        self._guard = guard
        self._settings = settings
        self._router = Router()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise RuntimeError(f"ASGI scope {kind!r} is not served")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.life.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await self.life.finish(self._settings.shutdown_timeout_ms / 1000)
        except Exception as failure:
            log.exception("closing the engine failed")
            await send({"type": "lifespan.shutdown.failed", "message": str(failure)})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except HttpError as error:
            response = error.response()
        except Disconnected:
            return
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            response = HttpError(500, "internal", "a bug: the server's log has it").response()
        # A client that left meanwhile is no error of the server.
        with contextlib.suppress(Disconnected, OSError):
            await respond(request, response, send)

    async def _answer(self, request: Request) -> Response:
        request.check_headers()
        self.life.start()
        try:
            route, parameter = self._router.match(request.method, raw_path(request.scope))
        except HttpError:
            self._guard.check(request, None)
            raise
        self._guard.check(request, route)
        content_type = negotiate(route, request.headers.get(b"accept"))
        if route.kind == "local":
            return await self._local(route)
        name = decode_name(parameter)
        body = b""
        if request.method in ("POST", "PUT") and request.has_body():
            check_body_type(request)
            seconds = self._settings.body_timeout_ms / 1000
            body = await request.body(self._settings.max_body_bytes, seconds)
            if not body:
                check_body_type(request)
        bridge = self.life.enter()
        try:
            status, answer = await self._call(bridge, route, name, request, body)
        finally:
            self.life.leave()
        return Response(status, answer, content_type, retry_after(status, answer))

    async def _call(
        self, bridge: LoopBridge, route: Route, name: str, request: Request, body: bytes
    ) -> Answer:
        key = request.headers.get(b"idempotency-key", b"")
        query = request.scope.get("query_string", b"")
        called = bridge.call(route.verb, name, query, body, key)
        return await self._await(bridge, route, request, called)  # type: ignore[arg-type]

    async def _await(self, *args: Any) -> Answer:
        raise NotImplementedError

    async def _local(self, route: Route) -> Response:
        raise NotImplementedError


def negotiate(route: Route, accept: bytes | None) -> bytes:
    """The content type of the answer; 406 when the client takes none of what there is."""
    offers = [JSON] if route.json_only else [PROMETHEUS, JSON]
    if accept is None or accept in (b"*/*", JSON):
        return JSON if accept == JSON else offers[0]
    best: tuple[float, bytes] | None = None
    for offer in offers:
        quality = _quality(accept, offer.partition(b";")[0])
        if quality > 0 and (best is None or quality > best[0]):
            best = (quality, offer)
    if best is None:
        names = ", ".join(o.decode() for o in offers)
        raise HttpError(406, "not_acceptable", f"this is served as {names}")
    return best[1]


def _quality(accept: bytes, offer: bytes) -> float:
    """The q of the most specific range of an Accept header that covers `offer`; 0 for none."""
    ranges = {offer: 3, offer.partition(b"/")[0] + b"/*": 2, b"*/*": 1}
    found = (0, 0.0)
    for item in accept.lower().split(b","):
        kind, *parameters = (p.strip() for p in item.split(b";"))
        if kind not in ranges:
            continue
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        found = max(found, (ranges[kind], quality))
    return found[1]

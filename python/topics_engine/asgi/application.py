"""The application: match the route, check the client, hand raw bytes to the core, send its bytes.

Python never looks into a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from .. import _core
from .access import Guard
from .bridge import Answer, LoopBridge
from .life import Life
from .messages import (
    ARROW,
    JSON,
    NDJSON,
    OCTETS,
    PROMETHEUS,
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


class App:
    """A plain ASGI 3 application over one engine.

    The life of the engine follows the ASGI lifespan. A server that does not speak lifespan gets the
    engine opened at the first request.
    """

    def __init__(self, life: Life, guard: Guard, settings: Settings) -> None:
        self.life = life
        self.guard = guard
        self._settings = settings
        self._router = Router()
        self._flags = {
            NDJSON: _core.BODY_NDJSON,
            OCTETS: _core.BODY_OCTETS,
            ARROW: _core.ACCEPT_ARROW,
            JSON: _core.ACCEPT_JSON,
        }

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
            self.guard.check(request, None)
            raise
        self.guard.check(request, route)
        offer = negotiate(route, request.headers.get(b"accept"))
        if route.verb == "health":
            return self.life.health()
        name = decode_name(parameter)
        flags, body = 0, b""
        if request.method in ("POST", "PUT") and request.has_body():
            kind = body_type(route, request)
            flags = 0 if kind == JSON else self._flags[kind]
            seconds = self._settings.body_timeout_ms / 1000
            body = await request.body(self._settings.max_body_bytes, seconds)
        if offer == ARROW or (offer == JSON and PROMETHEUS in route.offers):
            flags |= self._flags[offer]
        with self.life.using() as bridge:
            status, answer = await _call(bridge, route, name, request, body, flags)
        return core_response(status, answer, offer)


async def _call(
    bridge: LoopBridge, route: Route, name: str, request: Request, body: bytes, flags: int
) -> Answer:
    query: bytes = request.scope.get("query_string", b"")
    key = request.headers.get(b"idempotency-key", b"")
    token, answer = bridge.call(route.verb, name, query, body, flags, key)
    if answer is not None:
        return answer
    future = bridge.answer_of(token)
    try:
        if not route.waits:
            return await future
        gone = asyncio.ensure_future(request.disconnected())
        try:
            await asyncio.wait((future, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not future.done():
            raise Disconnected
        return future.result()
    finally:
        bridge.give_up(token)


def core_response(status: int, answer: bytes, offer: bytes) -> Response:
    """The core's answer with the headers that follow from it; an error is always JSON."""
    if status < 400:
        return Response(status, answer, offer)
    headers: list[Header] = []
    if status in (429, 503):
        headers.append((b"retry-after", str(_core.retry_after(answer)).encode()))
    return Response(status, answer, JSON, headers)


def body_type(route: Route, request: Request) -> bytes:
    """The media type of a request's body; 415 for what the route does not take."""
    given = request.headers.get(b"content-type", b"")
    kind, *parameters = (p.strip().lower() for p in given.split(b";"))
    encoding = request.headers.get(b"content-encoding", b"identity").strip().lower()
    charsets = [p.partition(b"=")[2].strip(b'"') for p in parameters if p.startswith(b"charset=")]
    names = ", ".join(t.decode() for t in route.takes)
    if kind not in route.takes or any(c != b"utf-8" for c in charsets):
        shown = given[:100].decode("latin-1")
        message = f"Content-Type {shown!r} is not taken here, only {names}"
        raise HttpError(415, "unsupported_media_type", message)
    if encoding != b"identity":
        shown = encoding[:100].decode("latin-1")
        raise HttpError(415, "unsupported_media_type", f"Content-Encoding {shown!r} is not taken")
    return kind


def negotiate(route: Route, accept: bytes | None) -> bytes:
    """The content type of the answer; 406 when the client takes none of what there is."""
    offers = route.offers
    if not accept or accept == b"*/*" or accept == offers[0]:
        return offers[0]
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

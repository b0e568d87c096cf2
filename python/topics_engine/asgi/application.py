"""The application: match the route, check the client, pass raw bytes to the core, send its bytes.

Python never parses a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from asyncio import FIRST_COMPLETED
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from .. import _core
from ..errors import InvalidRequest
from . import audit
from .access import Cors, Guard, KeyGuard
from .bridge import Answer, LoopBridge
from .compress import THREADED, Body, Inflater, accepts_gzip, deflate
from .console import console_file
from .keys import Client, Keys, Renewal
from .lifespan import EngineLifespan
from .limiter import ByteBudget, Limiter
from .matching import Found, Router, decode_name, decode_part, raw_path
from .messages import (
    ARROW,
    JSON,
    NDJSON,
    OCTETS,
    PROMETHEUS,
    Disconnected,
    HttpError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    respond,
    retry_after_headers,
)
from .metrics import ServerMetrics
from .openapi import document
from .proxies import TrustedProxies
from .route import Route
from .settings import Settings
from .socket import Output, deny, serve_socket
from .streaming import send_stream

log = logging.getLogger("topics_engine.asgi")

# Seconds that a new stream waits for recovery: less than the time limit of common proxies.
STREAM_WAIT = 20.0

BODIES = {
    JSON: 0,
    NDJSON: _core.BODY_NDJSON,
    OCTETS: _core.BODY_OCTETS,
    ARROW: _core.BODY_ARROW,
}


class App:
    """A plain ASGI 3 application over one engine.

    The engine opens and closes with the ASGI lifespan. Under a server without lifespan it opens at
    the first request, which waits for that. Mounted in another application, it opens and closes
    with `running()` in that application's lifespan.
    """

    def __init__(
        self,
        lifespan: EngineLifespan,
        guard: Guard,
        settings: Settings,
        unsent: _core.UnsentBytes,
    ) -> None:
        self.lifespan = lifespan
        self.guard = guard
        self._settings = settings
        self._router = Router()
        self._cors = Cors(settings.cors_origins)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self.audit = audit.AuditLog()
        self._stall = settings.stall_timeout_ms / 1000
        most, per_key = settings.max_sse_connections, settings.max_sse_connections_per_key
        self._streams = Limiter("max_sse_connections", most, per_key)
        lifespan.open_streams = lambda: self._streams.total
        # Futures of streams and sockets, by the grant of their client.
        self._revocations: defaultdict[int, set[asyncio.Future[None]]] = defaultdict(set)
        self._inflater = Inflater(settings.max_body_bytes)
        self.in_flight = Limiter("max_inflight", 0, settings.max_inflight_per_key)
        self.receiving = ByteBudget("max_receiving_bytes", settings.max_receiving_bytes)
        self.unsent = unsent
        self.metrics = ServerMetrics(
            _core.__version__, lambda: self._streams.total, lambda: unsent.held
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[App]:
        """Opens the engine, and closes it at the end of the block: for the lifespan of an
        application that mounts this one.

        When the process is told to end (SIGTERM, SIGINT), open streams end with a last event. Where
        the server does not run in the main thread, call `begin_shutdown()` instead.

        Raises:
            TopicsError: the data directory cannot be opened.

        Example:
            ```python
            topics = create_app()

            @asynccontextmanager
            async def lifespan(app):
                async with topics.running():
                    yield

            app = Starlette(routes=[Mount("/topics", topics)], lifespan=lifespan)
            ```
        """
        await self.lifespan.open()
        try:
            yield self
        finally:
            self.audit.close()
            await self.lifespan.close(self._settings.shutdown_timeout_ms / 1000)

    def begin_shutdown(self) -> None:
        """Ends open streams and waiting requests, and accepts no new work. Call it on the loop."""
        self.lifespan.begin_shutdown()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        else:
            raise RuntimeError(f"ASGI scope {kind!r} is not served")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.lifespan.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.audit.close()
        try:
            await self.lifespan.close(self._settings.shutdown_timeout_ms / 1000)
        except Exception as failure:
            log.exception("closing the engine failed")
            await send({"type": "lifespan.shutdown.failed", "message": str(failure)})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._proxies.resolve(scope)
        request = Request(scope, receive)
        audit.begin(request)
        begun = time.perf_counter()
        try:
            await self._respond(request, send)
        finally:
            request.release(self.receiving)
            if request.status:
                seconds = time.perf_counter() - begun
                self.metrics.count(request.route, request.method, request.status, seconds)
                self.audit.record(request)

    async def _respond(self, request: Request, send: Send) -> None:
        scope = request.scope
        response: Response | None
        try:
            response = await self._answer(request, send)
        except HttpError as error:
            response = error.response()
        except Disconnected:
            return
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            response = HttpError(500, "internal", "internal error: see the server's log").response()
        request.status = 200 if response is None else response.status
        if response is None:
            return
        response.headers += self._cors.headers(request) + audit.headers(request)
        size = len(response.body)
        self.unsent.take(size)
        try:
            # A client that disconnected meanwhile is not a server error.
            with contextlib.suppress(Disconnected, OSError):
                await respond(request, await compressed(request, response), send)
        finally:
            self.unsent.give(size)

    async def _answer(self, request: Request, send: Send) -> Response | None:
        """The response; `None` if it was a stream and has been sent."""
        request.check_headers()
        self.lifespan.start_on_demand()
        path = raw_path(request.scope)
        try:
            if request.method == "OPTIONS":
                methods = self._router.methods(path)
                if asked := self._cors.preflight(request, methods):
                    return asked
            found = self._router.match(request.method, path)
        except HttpError:
            self.guard.check(request, None)
            raise
        request.route = found.route
        client = self.guard.check(request, found.route)
        offer = negotiate(found.route, request.headers.get(b"accept"))
        if found.route.verb == "console":
            return console_file(request, decode_part(found.part))
        if found.route.verb in ("health", "openapi", "key", "socket"):
            request.refuse_query()
        if found.route.verb == "health":
            return self.lifespan.health()
        if found.route.verb == "openapi":
            return Response(200, document(_core.__version__))
        if found.route.verb == "key":
            return Response(200, json.dumps(client.describe()).encode())
        if found.route.verb == "socket":
            message = "this route is a WebSocket: connect with `Upgrade: websocket`"
            raise HttpError(400, "invalid_request", message)
        if found.route.verb != "ready":
            await self.lifespan.opened_on_demand()
        if found.route.endless:
            with self._streams.acquire(client.label):
                await self._recovered(request)
                with self.lifespan.using() as bridge:
                    return await self._stream(bridge, found, client, request, send, offer)
        with self.in_flight.acquire(client.label):
            if offer != ARROW:
                return await self._verb(found, client, request, offer)
            body = await self._posted(found.route, request)
            try:
                with self.lifespan.using() as bridge:
                    return await self._stream(bridge, found, client, request, send, offer, body)
            finally:
                body.release()

    async def _recovered(self, request: Request) -> None:
        """Waits while the engine recovers, at most `STREAM_WAIT`: after a refusal a browser's
        EventSource does not connect again."""
        if (opening := self.lifespan.opening) is None:
            return
        await _wait_for(opening, request, timeout=STREAM_WAIT)

    async def _verb(self, found: Found, client: Client, request: Request, offer: bytes) -> Response:
        route = found.route
        body = await self._posted(route, request)
        flags = body.flags
        if offer == JSON and PROMETHEUS in route.offers:
            flags |= _core.ACCEPT_JSON
        try:
            with self.lifespan.using() as bridge:
                key = request.headers.get(b"idempotency-key", b"")
                call = _begin(bridge, found, client, request, body.data, flags, key)
                # The answer may take long: release the body before waiting for it. A large one
                # is parsed, and written, by another thread until then.
                if route.waits or len(body.data) <= _core.LARGE_BODY:
                    body.release()
                    request.release(self.receiving)
                status, answer = await _answer_to(bridge, call, request, waits=route.waits)
        finally:
            body.release()
        if route.verb == "metrics" and status == 200:
            where = getattr(self.lifespan.engine, "path", None)
            answer = self.metrics.appended(answer, where, as_json=offer == JSON)
        response = core_response(status, answer, offer)
        # The native protocol, which does not compress, answers writes of all clients.
        response.compressible = route.verb != "write"
        return response

    async def _posted(self, route: Route, request: Request) -> Body:
        """Reads the body; its flags say what kind of body it is."""
        if request.method not in ("POST", "PUT"):
            return Body(b"", 0)
        if not request.has_body():
            # A route that needs a body says what it expected in it.
            return Body(b"", BODIES.get(media_type(request), 0))
        flags = BODIES[body_type(route, request)]
        limit, seconds = self._settings.max_body_bytes, self._settings.body_timeout_ms / 1000
        data = await request.body(limit, seconds, self.receiving)
        return await self._inflater.inflate(data, flags) if is_gzip(request) else Body(data, flags)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        self._proxies.resolve(scope)
        request = Request({**scope, "method": "GET"}, receive)
        audit.begin(request)
        try:
            request.check_headers()
            self.lifespan.start_on_demand()
            route = request.route = self._router.match("GET", raw_path(scope)).route
            client = self.guard.check(request, route)
            if route.verb != "socket":
                raise HttpError(404, "not_found", "no WebSocket at this path: connect to /v0/ws")
            request.refuse_query()
            await self.lifespan.opened_on_demand()
            with self._streams.acquire(client.label), self.lifespan.using() as bridge:
                token, answer = bridge.call("socket", "", b"", b"", 0, b"", "", client.grant)
                if answer is None or answer[0] != 200:
                    raise HttpError(503, "shutting_down", "the server is shutting down")
                await send({"type": "websocket.accept"})
                request.status = 101
                with contextlib.suppress(Disconnected, OSError), self._revocable(client) as revoked:
                    refused = partial(self.audit.record_message, request)
                    await serve_socket(
                        bridge,
                        token,
                        client,
                        receive,
                        Output(send, self._stall, self.unsent, (scope.get("extensions") or {})),
                        revoked,
                        refused,
                    )
        except HttpError as error:
            request.status = error.status
            await deny(scope, receive, send, error)
        finally:
            if request.status:
                self.metrics.count(request.route, "GET", request.status, 0.0)
                self.audit.record(request)

    @property
    def streams(self) -> int:
        """The number of open streams and sockets."""
        return self._streams.total

    async def _stream(
        self,
        bridge: LoopBridge,
        found: Found,
        client: Client,
        request: Request,
        send: Send,
        kind: bytes,
        body: Body | None = None,
    ) -> Response | None:
        flags = _core.ACCEPT_ARROW if kind == ARROW else 0
        last_id = request.headers.get(b"last-event-id", b"")
        given = b"" if body is None else body.data
        opened = _begin(bridge, found, client, request, given, flags, last_id)
        if body is not None:
            body.release()
        del given
        token = opened[0]
        status, opening = await _answer_to(bridge, opened, request, waits=True)
        if status != 200:
            return core_response(status, opening, JSON)
        extra = self._cors.headers(request) + audit.headers(request)
        with contextlib.suppress(Disconnected, OSError), self._revocable(client) as revoked:
            await send_stream(
                bridge,
                token,
                opening,
                request,
                send,
                kind,
                extra,
                self._stall,
                revoked,
                self.unsent,
            )
        return None

    @contextlib.contextmanager
    def _revocable(self, client: Client) -> Iterator[asyncio.Future[None]]:
        """A future that is done when the client's key is revoked."""
        revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        guard = self.guard
        if isinstance(guard, KeyGuard) and not guard.keys.has(client.grant):
            revoked.set_result(None)
        self._revocations[client.grant].add(revoked)
        try:
            yield revoked
        finally:
            self._revocations[client.grant].discard(revoked)

    @property
    def has_keys(self) -> bool:
        """Whether requests need an API key."""
        return isinstance(self.guard, KeyGuard)

    def renew_keys(self, keys: Keys) -> Renewal:
        """Replaces the API keys. Requests are checked against the new keys, and streams of revoked
        keys end.

        Args:
            keys: the new keys, all of them.

        Raises:
            InvalidRequest: the application was made without keys.
        """
        guard = self.guard
        if not isinstance(guard, KeyGuard):
            raise InvalidRequest(
                "a server that was started without API keys cannot get keys: restart it"
            )
        renewal = guard.keys.renew(keys)
        if self.lifespan.bridge is not None:
            self.lifespan.bridge.extend_grants(guard.keys.grants() or [])
        for grant in renewal.ended:
            for revoked in self._revocations.pop(grant, ()):
                revoked.set_result(None)
        return renewal


def _begin(
    bridge: LoopBridge,
    found: Found,
    client: Client,
    request: Request,
    body: bytes,
    flags: int,
    key: bytes,
) -> tuple[int, Answer | None]:
    """Starts a call; returns its token, and its answer if it is there already."""
    name, part = decode_name(found.name), decode_part(found.part)
    query: bytes = request.scope.get("query_string", b"")
    verb = found.route.verb
    return bridge.call(verb, name, query, body, flags, key, part, client.grant, request.trace())


async def _answer_to(
    bridge: LoopBridge, call: tuple[int, Answer | None], request: Request, *, waits: bool
) -> Answer:
    """Awaits the answer to a call; one that `waits` is cancelled when the client disconnects."""
    token, answer = call
    if answer is not None:
        return answer
    future = bridge.answer_of(token)
    try:
        if waits:
            await _wait_for(future, request)
        return await future
    finally:
        bridge.cancel_call(token)


async def _wait_for(
    future: asyncio.Future[Any], request: Request, timeout: float | None = None
) -> None:
    """Waits until the future is done or the seconds are over; `Disconnected` if the client is gone
    before."""
    gone = asyncio.ensure_future(request.disconnected())
    try:
        await asyncio.wait((future, gone), timeout=timeout, return_when=FIRST_COMPLETED)
    finally:
        gone.cancel()
    if gone.done() and not future.done():
        raise Disconnected


def core_response(status: int, answer: bytes, offer: bytes) -> Response:
    """The core's answer as a response; errors are always JSON."""
    if status < 400:
        return Response(status, answer, offer)
    return Response(status, answer, JSON, retry_after_headers(status, answer))


def media_type(request: Request) -> bytes:
    """The media type that the request names, without its parameters."""
    return request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def body_type(route: Route, request: Request) -> bytes:
    """The media type of the body; 415 if the route does not take it."""
    given = request.headers.get(b"content-type", b"")
    kind = media_type(request)
    parameters = [p.strip().lower() for p in given.split(b";")[1:]]
    encoding = request.headers.get(b"content-encoding", b"identity").strip().lower()
    charsets = [p.partition(b"=")[2].strip(b'"') for p in parameters if p.startswith(b"charset=")]
    names = ", ".join(t.decode() for t in route.takes)
    if kind not in route.takes or any(c != b"utf-8" for c in charsets):
        shown = given[:100].decode("latin-1")
        message = f"Content-Type {shown!r} is not supported by this route: send {names}"
        raise HttpError(415, "unsupported_media_type", message)
    if encoding not in (b"identity", b"gzip"):
        shown = encoding[:100].decode("latin-1")
        raise HttpError(
            415,
            "unsupported_media_type",
            f"Content-Encoding {shown!r} is not supported: send gzip or none",
        )
    return kind


def is_gzip(request: Request) -> bool:
    """Whether the body is gzip."""
    return request.headers.get(b"content-encoding", b"").strip().lower() == b"gzip"


async def compressed(request: Request, response: Response) -> Response:
    """Compresses a response if the client accepts gzip."""
    if not response.compressible or not accepts_gzip(
        request.headers.get(b"accept-encoding"), len(response.body)
    ):
        return response
    body = response.body
    small = len(body) < THREADED
    response.body = deflate(body) if small else await asyncio.to_thread(deflate, body)
    response.headers += [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
    return response


def negotiate(route: Route, accept: bytes | None) -> bytes:
    """The content type of the response; 406 if the client accepts none of the route's."""
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
        raise HttpError(
            406, "not_acceptable", f"Accept excludes all that this route can send: {names}"
        )
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

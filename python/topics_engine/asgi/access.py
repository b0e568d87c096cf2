"""Access control, which runs before any verb.

A `Guard` checks every request with its route, and returns its client. `LoopbackGuard` serves a
server without keys: only this machine reaches its socket, so it keeps out web pages in local
browsers.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Protocol
from urllib.parse import unquote_to_bytes

from .keys import ANYONE, Client, Keys
from .messages import EVENTS, Header, HttpError, Request, Response
from .route import Route, Scope

_HOST = re.compile(rb"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]@/\s]*))(?::[0-9]*)?\Z")
_BEARER = re.compile(rb"bearer +(\S+)\Z", re.IGNORECASE)
# Content types that a page may post without a preflight.
_FORMS = (b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")
_CHALLENGE = (b"www-authenticate", b'Bearer realm="topics"')


class Guard(Protocol):
    """Checks a request before its body is read; raises `HttpError` to refuse it."""

    def check(self, request: Request, route: Route | None) -> Client: ...


class LoopbackGuard:
    """Accepts requests to a loopback name (against DNS rebinding) that no foreign web page has
    made.

    Browsers send many cross-origin requests without a preflight; a GET claims jobs, and opens
    streams and sockets. So the check covers all routes except those that answer without the engine.
    """

    def __init__(self, cors: Cors | None = None) -> None:
        self._cors = cors or Cors("")

    def check(self, request: Request, route: Route | None) -> Client:
        if route is None or not (route.open or route.verb == "openapi"):
            self._refuse_pages(request)
        for name, value in request.scope["headers"]:
            if name == b"host" and not is_loopback_authority(value):
                shown = value[:100].decode("latin-1")
                message = f"Host {shown!r} is not a loopback name, and the server has no API keys"
                raise HttpError(403, "forbidden", message)
        return ANYONE

    def _refuse_pages(self, request: Request) -> None:
        """Refuses requests of foreign web pages, and of browsers that do not name the page."""
        headers = request.headers
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is not None and self._cors.allows(origin):
            return
        host = headers.get(b"host", b"").strip()
        if origin is not None and not _is_origin(origin, host):
            raise _foreign("this request comes from a web page of another origin")
        if site is not None and site.strip().lower() not in (b"same-origin", b"none"):
            raise _foreign("this request comes from a web page of another origin")
        if origin is not None or site is not None:
            return
        referer = headers.get(b"referer")
        if referer is not None:
            if not _is_origin(b"/".join(referer.split(b"/", 3)[:3]), host):
                raise _foreign("this request comes from a web page of another origin")
        elif _is_silent_browser(request):
            raise _foreign("this request comes from a browser that does not say for which web page")


def _foreign(what: str) -> HttpError:
    message = f"{what}, and the server has no API keys: list the origin in TOPICS_CORS_ORIGINS"
    return HttpError(403, "forbidden", message)


def _is_origin(origin: bytes, host: bytes) -> bool:
    """Whether an origin is that of pages which a server with this `Host` serves."""
    scheme, _, authority = origin.strip().lower().partition(b"://")
    return scheme in (b"http", b"https") and bool(host) and authority == host.lower()


def _is_silent_browser(request: Request) -> bool:
    """Whether a browser may have sent this request without a preflight and without naming its page.

    Such a request has no JSON body. Every browser calls itself Mozilla, and few other clients do.
    """
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    plain = request.method in ("GET", "HEAD") or (request.method == "POST" and kind in _FORMS)
    return plain and request.headers.get(b"user-agent", b"").startswith(b"Mozilla/")


class OpenGuard:
    """Accepts every request: the setting TOPICS_ALLOW_INSECURE_NO_AUTH."""

    def check(self, request: Request, route: Route | None) -> Client:
        return ANYONE


class KeyGuard:
    """Accepts requests with a known API key whose scopes allow the route."""

    def __init__(self, keys: Keys, *, probes: bool = False) -> None:
        self.keys = keys
        self._probes = probes

    def check(self, request: Request, route: Route | None) -> Client:
        # The page asks for the key, so it needs none itself.
        if route is not None and route.open and (route.verb == "console" or not self._probes):
            return ANYONE
        secret = _secret(request, route)
        client = None if secret is None else self.keys.find(secret)
        if client is None:
            wrong = "there is no such key" if secret else "an API key is required"
            message = f"{wrong}: send Authorization: Bearer <key>"
            raise HttpError(401, "unauthorized", message, headers=[_CHALLENGE])
        request.key = client.label
        missing = _missing(client, route)
        if missing:
            named = " and ".join(f"`{scope}`" for scope in missing)
            message = f"this key lacks scope {named}; use a key that has it"
            raise HttpError(403, "forbidden", message, {"missing": missing})
        return client

    def admit(self, route: Route, authorization: bytes) -> Client | None:
        """The client of an `Authorization` header, if it may use the route; else `None`."""
        found = _BEARER.match(authorization.strip())
        client = None if found is None else self.keys.find(found[1])
        return None if client is None or _missing(client, route) else client


def _missing(client: Client, route: Route | None) -> list[Scope]:
    return [s for s in (route.needs if route else ()) if s not in client.scopes]


def _secret(request: Request, route: Route | None) -> bytes | None:
    """The API key of a request. A key in the query is removed from it, so that no log contains
    it.
    """
    scope = request.scope
    query = scope.get("query_string", b"")
    token = None
    if b"token=" in query:
        parts = query.split(b"&")
        given = [part[6:] for part in parts if part.startswith(b"token=")]
        scope["query_string"] = b"&".join(p for p in parts if not p.startswith(b"token="))
        if given and route is not None and EVENTS in route.offers:
            token = unquote_to_bytes(given[-1].replace(b"+", b" "))
    found = _BEARER.match(request.headers.get(b"authorization", b"").strip())
    return found[1] if found else token


def is_loopback(host: str) -> bool:
    """Whether a name or address always means this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_authority(value: bytes) -> bool:
    """Whether a Host header, with port and brackets, names this machine."""
    found = _HOST.match(value.strip())
    if found is None:
        return False
    host = found["v6"] or found["name"]
    return is_loopback(host.decode("latin-1"))


class BindRefused(ValueError):
    """The server would be reachable from other machines without API keys."""


def check_bind(host: str, *, insecure: bool, keys: bool = False) -> None:
    """Refuses to listen on other addresses than loopback without keys, unless `insecure`."""
    if keys or insecure or is_loopback(host):
        return
    raise BindRefused(
        f"refusing to listen on {host}: there are no keys, so anyone who reaches the port could "
        "read, write and delete. Set TOPICS_API_KEYS, listen on 127.0.0.1, or set "
        "TOPICS_ALLOW_INSECURE_NO_AUTH=1"
    )


_ALLOWED = (
    b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Accept, Traceparent, Tracestate"
)
_EXPOSED = b"Retry-After"
_MAX_AGE = b"600"


class Cors:
    """The origins of web pages that may use the server."""

    def __init__(self, origins: str) -> None:
        self._origins = frozenset(o.strip().encode() for o in origins.split(",") if o.strip())

    @property
    def allows_all(self) -> bool:
        """Whether pages of every origin may use the server."""
        return b"*" in self._origins

    def allows(self, origin: bytes) -> bool:
        """Whether pages of this origin may use the server."""
        return origin in self._origins or self.allows_all

    def _allowed(self, request: Request) -> bytes | None:
        origin = request.headers.get(b"origin")
        return origin if origin is not None and self.allows(origin) else None

    def headers(self, request: Request) -> list[Header]:
        """The CORS headers of a response."""
        if not self._origins or b"origin" not in request.headers:
            return []
        vary: Header = (b"vary", b"Origin")
        origin = self._allowed(request)
        if origin is None:
            return [vary]
        return [
            vary,
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
        ]

    def preflight(self, request: Request, methods: list[str]) -> Response | None:
        """The answer to a CORS preflight; `None` for any other request."""
        if request.method != "OPTIONS" or b"access-control-request-method" not in request.headers:
            return None
        if self._allowed(request) is None:
            return None
        allowed: list[Header] = [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", _ALLOWED),
            (b"access-control-max-age", _MAX_AGE),
        ]
        return Response(204, b"", headers=allowed)

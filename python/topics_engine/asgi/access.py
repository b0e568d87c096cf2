"""Who may talk to the server, before any verb is looked at.

A `Guard` sees every request with its route, and says who it is from. `LoopbackGuard` is the one for
a server without keys: nobody else can reach the socket, so what is left to keep out is a web page
in a browser on the same machine that rebinds its own name to it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Protocol
from urllib.parse import unquote_to_bytes, urlsplit

from .cors import Cors
from .keys import ANYONE, Client, Keys
from .messages import EVENTS, HttpError, Request
from .route import Route, Scope

_HOST = re.compile(rb"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]@/\s]*))(?::[0-9]*)?\Z")
_BEARER = re.compile(rb"bearer +(\S+)\Z", re.IGNORECASE)
_CHALLENGE = (b"www-authenticate", b'Bearer realm="topics"')


class Guard(Protocol):
    """Refuses a request by raising `HttpError`; called before the body is read."""

    def check(self, request: Request, route: Route | None) -> Client: ...


class LoopbackGuard:
    """Only requests that were addressed to a loopback name (DNS rebinding), and that no page from
    elsewhere has made: a browser sends some of those without asking first, sockets among them."""

    def __init__(self, cors: Cors | None = None) -> None:
        self._cors = cors or Cors("")

    def check(self, request: Request, route: Route | None) -> Client:
        origin = request.headers.get(b"origin")
        harmless = request.method in ("GET", "HEAD", "OPTIONS")
        if origin is not None and not (harmless and request.scope["type"] == "http"):
            own = is_loopback(urlsplit(origin.decode("latin-1")).hostname or "")
            if not own and not self._cors.allows(origin):
                message = "a page of another origin made this request: see TOPICS_CORS_ORIGINS"
                raise HttpError(403, "forbidden", message)
        for name, value in request.scope["headers"]:
            if name == b"host" and not is_loopback_authority(value):
                shown = value[:100].decode("latin-1")
                message = f"Host {shown!r} is not a loopback name, and the server has no keys"
                raise HttpError(403, "forbidden", message)
        return ANYONE


class OpenGuard:
    """Lets everything pass: what TOPICS_ALLOW_INSECURE_NO_AUTH asks for."""

    def check(self, request: Request, route: Route | None) -> Client:
        return ANYONE


class KeyGuard:
    """Only clients with a key, for what its scopes allow."""

    def __init__(self, keys: Keys, *, probes: bool = False) -> None:
        self.keys = keys
        self._probes = probes

    def check(self, request: Request, route: Route | None) -> Client:
        if route is not None and route.open and not self._probes:
            return ANYONE
        secret = _secret(request, route)
        client = None if secret is None else self.keys.find(secret)
        if client is None:
            wrong = "there is no such key" if secret else "a key is needed"
            message = f"{wrong}: send Authorization: Bearer <key>"
            raise HttpError(401, "unauthorized", message, headers=[_CHALLENGE])
        missing = _missing(client, route)
        if missing:
            message = f"this key has not the scope {' and '.join(missing)}: use one that does"
            raise HttpError(403, "forbidden", message, {"missing": missing})
        return client

    def admit(self, route: Route, authorization: bytes) -> Client | None:
        """The client that an `Authorization` header means, if it may have a route that is not
        open."""
        found = _BEARER.match(authorization.strip())
        client = None if found is None else self.keys.find(found[1])
        return None if client is None or _missing(client, route) else client


def _missing(client: Client, route: Route | None) -> list[Scope]:
    return [s for s in (route.needs if route else ()) if s not in client.scopes]


def _secret(request: Request, route: Route | None) -> bytes | None:
    """The key that a request brings. One in the query is taken out of it, so that no log has it."""
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
    """Whether a name or address can only mean this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_authority(value: bytes) -> bool:
    """The same for the value of a Host header, port and brackets included."""
    found = _HOST.match(value.strip())
    if found is None:
        return False
    host = found["v6"] or found["name"]
    return is_loopback(host.decode("latin-1"))


class BindRefused(ValueError):
    """The server would be open to others without keys."""


def check_bind(host: str, *, insecure: bool, keys: bool = False) -> None:
    """Refuses to listen beyond this machine without keys, unless told to."""
    if keys or insecure or is_loopback(host):
        return
    raise BindRefused(
        f"refusing to listen on {host}: there are no keys, so anyone who reaches the port could "
        "read, write and delete. Set TOPICS_API_KEYS, listen on 127.0.0.1, or set "
        "TOPICS_ALLOW_INSECURE_NO_AUTH=1"
    )

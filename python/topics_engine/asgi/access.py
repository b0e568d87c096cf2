"""Who may talk to the server, before any verb is looked at.

A `Guard` sees every request with its route. `LoopbackGuard` is the one for a server without keys:
nobody else can reach the socket, so what is left to keep out is a web page in a browser on the same
machine that rebinds its own name to it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Protocol

from .messages import HttpError, Request
from .route import Route

_HOST = re.compile(rb"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]@/\s]*))(?::[0-9]*)?\Z")


class Guard(Protocol):
    """Refuses a request by raising `HttpError`; called before the body is read."""

    def check(self, request: Request, route: Route | None) -> None: ...


class LoopbackGuard:
    """Only requests that were addressed to a loopback name (DNS rebinding)."""

    def check(self, request: Request, route: Route | None) -> None:
        for name, value in request.scope["headers"]:
            if name == b"host" and not is_loopback_authority(value):
                shown = value[:100].decode("latin-1")
                message = f"Host {shown!r} is not a loopback name, and the server has no keys"
                raise HttpError(403, "forbidden", message)


class OpenGuard:
    """Lets everything pass: what TOPICS_ALLOW_INSECURE_NO_AUTH asks for."""

    def check(self, request: Request, route: Route | None) -> None:
        return


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


def check_bind(host: str, *, insecure: bool) -> None:
    """Refuses to listen beyond this machine without keys, unless told to."""
    if insecure or is_loopback(host):
        return
    raise BindRefused(
        f"refusing to listen on {host}: there are no keys, so anyone who reaches the port could "
        "read, write and delete. Listen on 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1"
    )

"""The one table of routes: the router, the documentation and the tests are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from .messages import ARROW, JSON, NDJSON, OCTETS, PROMETHEUS, HttpError, Scope

Access = Literal["open", "read", "write", "delete", "admin"]


@dataclass(frozen=True, slots=True)
class Route:
    """A method and path, and the verb behind it.

    `waits` marks a verb that may be held back on purpose; it is given up when the client goes.
    `offers` are the content types of the answer, the first by default; `takes` those of the body.
    """

    method: str
    path: str
    verb: str
    access: Access
    summary: str
    waits: bool = False
    offers: tuple[bytes, ...] = (JSON,)
    takes: tuple[bytes, ...] = (JSON,)


ROUTES: tuple[Route, ...] = (
    Route("GET", "/v0/topics", "list", "read", "topics in name order, a page at a time"),
    Route("PUT", "/v0/topics/:t", "create", "admin", "create a topic or update its config"),
    Route("GET", "/v0/topics/:t", "state", "read", "the state of a topic"),
    Route(
        "DELETE",
        "/v0/topics/:t",
        "drop",
        "delete",
        "delete a topic and all that belongs to it",
    ),
    Route(
        "POST",
        "/v0/topics/:t",
        "write",
        "write",
        "append a batch of records",
        takes=(JSON, NDJSON, OCTETS),
    ),
    Route(
        "POST",
        "/v0/topics/:t/diff",
        "diff",
        "read",
        "what came after a seq",
        waits=True,
        offers=(JSON, ARROW),
    ),
    Route("POST", "/v0/topics/:t/delete", "delete", "delete", "delete records"),
    Route("POST", "/v0/topics/:t/seek", "seek", "read", "the cursor before a point in time"),
    Route("POST", "/v0/state", "states", "read", "the state of many topics"),
    Route("POST", "/v0/sync", "sync", "write", "return when all acked before is durable"),
    Route("POST", "/v0/admin/checkpoint", "checkpoint", "admin", "one checkpoint round"),
    Route("POST", "/v0/admin/verify", "verify", "admin", "check every checksum and index"),
    Route(
        "GET",
        "/v0/metrics",
        "metrics",
        "read",
        "Prometheus text or JSON",
        offers=(PROMETHEUS, JSON),
    ),
    Route("GET", "/v0/health", "health", "open", "the process is alive"),
    Route("GET", "/healthz", "health", "open", "the process is alive"),
    Route("GET", "/v0/ready", "ready", "open", "recovery is done, writes are taken"),
    Route("GET", "/readyz", "ready", "open", "recovery is done, writes are taken"),
)


class _Node:
    """A step of a path: its literal children, its one parameter child, its methods."""

    __slots__ = ("literal", "methods", "parameter")

    def __init__(self) -> None:
        self.literal: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, Route] = {}


class Router:
    """Matches a raw, still percent-encoded path, so that a name may hold any byte."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for part in route.path.strip("/").split("/"):
                if part.startswith(":"):
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
                else:
                    node = node.literal.setdefault(part.encode(), _Node())
            node.methods[route.method] = route
            if route.method == "GET":
                node.methods["HEAD"] = route

    def match(self, method: str, raw_path: bytes) -> tuple[Route, bytes]:
        """The route and its still encoded parameter; raises 404 or 405."""
        node: _Node | None = self._root
        parameter = b""
        for part in raw_path[1:].split(b"/"):
            assert node is not None
            child = node.literal.get(part)
            if child is None and node.parameter is not None and part:
                child, parameter = node.parameter, part
            node = child
            if node is None:
                break
        if node is None or not node.methods or not raw_path.startswith(b"/"):
            path = raw_path[:200].decode("latin-1")
            raise HttpError(404, "not_found", f"nothing is served at {path}")
        route = node.methods.get(method)
        if route is None:
            allowed = ", ".join(sorted(node.methods))
            message = f"{method} is not possible here, only {allowed}"
            raise HttpError(
                405, "method_not_allowed", message, headers=[(b"allow", allowed.encode())]
            )
        return route, parameter


def raw_path(scope: Scope) -> bytes:
    """The encoded path below the point where the application is mounted."""
    path: bytes | None = scope.get("raw_path")
    if path is None:
        path = quote(scope["path"]).encode()
    path = path.partition(b"?")[0]
    root: str = scope.get("root_path", "").rstrip("/")
    if root:
        prefix = quote(root).encode()
        if path == prefix or path.startswith(prefix + b"/"):
            return path[len(prefix) :] or b"/"
    return path


def decode_name(encoded: bytes) -> str:
    """A path parameter as text; what is not valid percent-encoded UTF-8 is refused."""
    if b"%" not in encoded:
        raw = encoded
    else:
        out = bytearray()
        head, *rest = encoded.split(b"%")
        out += head
        for part in rest:
            try:
                if len(part) < 2 or not part[:2].isalnum():
                    raise ValueError
                out.append(int(part[:2], 16))
            except ValueError:
                raise _bad_name() from None
            out += part[2:]
        raw = bytes(out)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _bad_name() from None


def _bad_name() -> HttpError:
    return HttpError(400, "invalid_request", "the name in the path is not percent-encoded UTF-8")

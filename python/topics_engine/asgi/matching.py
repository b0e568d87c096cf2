"""Matches a path to its route. Paths stay percent-encoded until then: a name may contain any
byte.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from .messages import HttpError, Scope
from .routes import ROUTES, Route


class Found(NamedTuple):
    """A route, the encoded name in the path, and the other encoded parameters, joined by a
    slash.
    """

    route: Route
    name: bytes
    part: bytes


class _Node:
    """One step of a path: its literal children, its parameter child, its methods."""

    __slots__ = ("literal", "methods", "parameter")

    def __init__(self) -> None:
        self.literal: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, Route] = {}


class Router:
    """Matches paths against a table of routes."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for step in route.path.strip("/").split("/"):
                if step.startswith(":"):
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
                else:
                    node = node.literal.setdefault(step.encode(), _Node())
            node.methods[route.method] = route
            if route.method == "GET" and not route.streams:
                node.methods["HEAD"] = route

    def _node(self, path: bytes) -> tuple[_Node, list[bytes]]:
        """The node of a path, and its encoded parameters; 404 if there is none."""
        node: _Node | None = self._root
        parameters = []
        if path == b"/console/":
            path = b"/console"
        for step in path[1:].split(b"/"):
            assert node is not None
            child = node.literal.get(step)
            if child is None and node.parameter is not None and step:
                child = node.parameter
                parameters.append(step)
            node = child
            if node is None:
                break
        if node is None or not node.methods or not path.startswith(b"/"):
            shown = path[:200].decode("latin-1")
            message = f"no route at {shown}: GET /v0/openapi.json lists the routes"
            raise HttpError(404, "not_found", message)
        return node, parameters

    def match(self, method: str, path: bytes) -> Found:
        """The route of a request; 404 or 405 if there is none."""
        node, parameters = self._node(path)
        route = node.methods.get(method)
        if route is None:
            allowed = ", ".join(sorted(node.methods))
            message = f"this route does not take {method}: use {allowed}"
            raise HttpError(
                405, "method_not_allowed", message, headers=[(b"allow", allowed.encode())]
            )
        if not route.named:
            parameters.insert(0, b"")
        name, *rest = (*parameters, b"")
        return Found(route, name, b"/".join(part for part in rest if part))

    def methods(self, path: bytes) -> list[str]:
        """The methods of a path; 404 if there is none."""
        return sorted(self._node(path)[0].methods)


def raw_path(scope: Scope) -> bytes:
    """The encoded path below the mount point of the application."""
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
    """Decodes a path parameter; 400 if it is not percent-encoded UTF-8."""
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


def decode_part(encoded: bytes) -> str:
    """Decodes the other parameters; only the last may contain a slash."""
    *first, last = (decode_name(part) for part in encoded.split(b"/"))
    if any("/" in part for part in first):
        raise _bad_name()
    return "/".join([*first, last])


def _bad_name() -> HttpError:
    return HttpError(400, "invalid_request", "the name in the path is not percent-encoded UTF-8")

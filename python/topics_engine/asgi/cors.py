"""Web pages of other origins: none, unless the settings name them."""

from __future__ import annotations

from .messages import Header, Request, Response

_ALLOWED = b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Accept"
_EXPOSED = b"Retry-After"
_MAX_AGE = b"600"


class Cors:
    """The origins that a browser may be told of."""

    def __init__(self, origins: str) -> None:
        self._origins = frozenset(o.strip().encode() for o in origins.split(",") if o.strip())

    def allows(self, origin: bytes) -> bool:
        """Whether pages of this origin may talk to the server."""
        return origin in self._origins or b"*" in self._origins

    def _allowed(self, request: Request) -> bytes | None:
        origin = request.headers.get(b"origin")
        return origin if origin is not None and self.allows(origin) else None

    def headers(self, request: Request) -> list[Header]:
        """What an answer says to the page that asked."""
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
        """The answer to a browser that asks beforehand; `None` for anything else."""
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

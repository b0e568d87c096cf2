"""Request ids, and the audit log: administrative requests and refused keys.

An audit record names the key by its label, which identifies it without revealing it. The path has
no query, in which a key might be.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from .messages import Header, Request
from .route import Route

audit = logging.getLogger("topics_engine.audit")

HEADER = b"x-request-id"
current_request: ContextVar[str] = ContextVar("topics_request_id", default="")
"""The id of the request that this task answers; empty if its client sent none."""

_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_ADMINISTRATIVE = {"admin", "delete"}
_REFUSED = (401, 403)
_MOST_TEXT = 300
"""Characters of a path, and of a reason, in a line."""

UNAUTHORIZED_LINES = 100
"""Requests without a valid key that are recorded one by one in each window; the rest is counted."""
WINDOW_SECONDS = 60.0


def begin(request: Request) -> None:
    """Reads the request's id; one with other characters, or a longer one, is ignored."""
    found = request.headers.get(HEADER, b"").strip()
    request.id = found if _ID.fullmatch(found) else b""
    current_request.set(request.id.decode())


def headers(request: Request) -> list[Header]:
    """The header that repeats the id of the request; none if it has no id."""
    return [(HEADER, request.id)] if request.id else []


class AuditLog:
    """Writes the audit records of an application.

    Anyone can make a server refuse requests without a key. Of these, a window has a limited number
    of records, and at its end one that counts the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._window_end = 0.0
        self._unauthorized = 0
        self._suppressed = 0
        self._timer: asyncio.TimerHandle | None = None

    def record(self, request: Request) -> None:
        """Writes a record if the request was administrative, or its key was refused."""
        route, status = request.route, request.status
        administrative = route is not None and not _ADMINISTRATIVE.isdisjoint(route.needs)
        if not (administrative or status in _REFUSED) or not audit.isEnabledFor(logging.INFO):
            return
        if status == 401 and not self._has_capacity():
            return
        verb = route.verb if route else ""
        _write(request, request.method, request.scope["path"], verb, status)

    def record_message(self, request: Request, piece: bytes) -> None:
        """Writes a record if this message to the client of a WebSocket refuses one of its
        messages.
        """
        if not piece.startswith(b'{"op":"error"') or not audit.isEnabledFor(logging.INFO):
            return
        answer = json.loads(piece)
        if answer["code"] == "forbidden":
            path, reason = request.scope["path"], str(answer["message"])
            _write(request, "MESSAGE", path, "socket", 403, reason)

    def record_native(
        self, route: Route, name: str, key: str, request_id: bytes, client: str
    ) -> None:
        """Writes a record of a request that the native protocol answered with 403."""
        if audit.isEnabledFor(logging.INFO):
            path = route.path.replace("/:t", f"/{name}").replace("/:q", f"/{name}")
            _log(request_id.decode(), key, client, route.method, path, route.verb, 403)

    def close(self) -> None:
        """Writes the count of the records that were left out since the last one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        count, self._suppressed = self._suppressed, 0
        if count:
            audit.info(
                "refused %d more requests without a valid key, which have no lines of their own",
                count,
                extra={"fields": {"status": 401, "suppressed": count}},
            )

    def _has_capacity(self) -> bool:
        now = self._clock()
        if now >= self._window_end:
            self.close()
            self._window_end, self._unauthorized = now + WINDOW_SECONDS, 0
        self._unauthorized += 1
        if self._unauthorized <= UNAUTHORIZED_LINES:
            return True
        self._suppressed += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._window_end - now, self.close)
        return False


def _write(
    request: Request, method: str, path: str, verb: str, status: int, reason: str = ""
) -> None:
    client = request.scope.get("client")
    address = client[0] if client else ""
    _log(request.id.decode(), request.key, address, method, path, verb, status, reason)


def _log(
    request_id: str,
    key: str,
    client: str,
    method: str,
    path: str,
    verb: str,
    status: int,
    reason: str = "",
) -> None:
    path = path[:_MOST_TEXT]
    fields: dict[str, Any] = {
        "request_id": request_id,
        "key": key,
        "client": client,
        "method": method,
        "path": path,
        "verb": verb,
        "status": status,
    }
    if reason:
        fields["reason"] = reason[:_MOST_TEXT]
    outcome = "refused" if status in _REFUSED else "done" if status < 400 else "failed"
    message = "%s %s %r: %d, key %s, from %s" + (": %s" if reason else "")
    shown = (outcome, method, path, status, key or "none", client or "unknown")
    audit.info(message, *shown, *filter(None, [reason]), extra={"fields": fields})

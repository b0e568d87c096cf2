"""Request ids, and the audit log: administrative requests and refused keys.

An audit record names the key by its label, which identifies it without revealing it. The path has
no query, in which a key might be.
"""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar

from .messages import Header, Request

audit = logging.getLogger("topics_engine.audit")

HEADER = b"x-request-id"
current_request: ContextVar[str] = ContextVar("topics_request_id", default="")
"""The id of the request that this task answers; empty if its client sent none."""

_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_ADMINISTRATIVE = {"admin", "delete"}
_REFUSED = (401, 403)
_PATH = 300


def begin(request: Request) -> None:
    """Reads the request's id; one with other characters, or a longer one, is ignored."""
    found = request.headers.get(HEADER, b"").strip()
    request.id = found if _ID.fullmatch(found) else b""
    current_request.set(request.id.decode())


def headers(request: Request) -> list[Header]:
    """The header that repeats the id of the request; none if it has no id."""
    return [(HEADER, request.id)] if request.id else []


def record(request: Request) -> None:
    """Writes an audit record if the request was administrative, or its key was refused."""
    route, status = request.route, request.status
    administrative = route is not None and not _ADMINISTRATIVE.isdisjoint(route.needs)
    if not (administrative or status in _REFUSED) or not audit.isEnabledFor(logging.INFO):
        return
    client = request.scope.get("client")
    fields = {
        "request_id": request.id.decode(),
        "key": request.key,
        "client": client[0] if client else "",
        "method": request.method,
        "path": request.scope["path"][:_PATH],
        "verb": route.verb if route else "",
        "status": status,
    }
    outcome = "refused" if status in _REFUSED else "done" if status < 400 else "failed"
    message = "%s %s %r: %d, key %s, from %s"
    shown = (outcome, fields["method"], fields["path"], status, request.key or "none")
    audit.info(message, *shown, fields["client"] or "unknown", extra={"fields": fields})

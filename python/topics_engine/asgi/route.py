"""A route: method, path, verb, and what its clients need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .messages import ARROW, JSON

Scope = Literal["read", "write", "delete", "admin"]
Kind = Literal[
    "any",
    "array of integers",
    "array of objects",
    "array of strings",
    "array of strings or integers",
    "boolean",
    "config",
    "integer",
    "integer or boolean",
    "match",
    "object",
    "string",
    "string or array of strings",
    "string or integer",
]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a body, or a parameter of a query."""

    name: str
    kind: Kind
    summary: str = ""
    required: bool = False
    or_null: bool = False
    """Whether `null` is a value. Any other field is absent then; a config refuses it."""
    words: tuple[str, ...] = ()
    """The values of a string that is one of some words."""
    of: tuple[Field, ...] = ()
    """The fields of nested objects."""


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table.

    Args:
        needs: scopes that a key must have; none if the route is open, or for the socket, where each
            message needs its own.
        waits: the verb may wait; it is cancelled when the client disconnects.
        streams: the response is sent while it is made; one of events does not end.
        offers: content types of the response, the first by default.
        takes: content types of the body.
        codes: error codes of this verb, in addition to those of every route.
        answer: the fields of the answer; `?` marks those that may be absent.
    """

    method: str
    path: str
    verb: str
    needs: tuple[Scope, ...]
    summary: str
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] | None = None
    answer: str = "object"
    statuses: tuple[int, ...] = (200,)
    codes: tuple[str, ...] = ()
    waits: bool = False
    streams: bool = False
    offers: tuple[bytes, ...] = (JSON,)
    takes: tuple[bytes, ...] = (JSON,)

    @property
    def access(self) -> str:
        """The scopes in words."""
        return "+".join(self.needs) or ("open" if self.open else "by message")

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self.needs and self.verb != "socket"

    @property
    def endless(self) -> bool:
        """Whether only the client or the server ends the response."""
        return self.streams and ARROW not in self.offers

    @property
    def named(self) -> bool:
        """Whether the path names a topic, queue or router, which key prefixes restrict."""
        return any(f"/:{letter}/" in f"{self.path}/" for letter in "tqr")

    @property
    def all_codes(self) -> frozenset[str]:
        """Every error code of the route."""
        return frozenset(self.codes) | _common(self)


ALWAYS = ("headers_too_large", "method_not_allowed", "not_acceptable", "not_found")
ENGINELESS = ("health", "openapi", "key", "console")
"""Verbs that are answered without the engine."""

ENGINE = (
    "cold_unavailable",
    "internal",
    "not_ready",
    "shutting_down",
    "storage_unavailable",
    "throttled",
)
BODY = ("invalid_request", "payload_too_large", "request_timeout", "unsupported_media_type")


def _common(route: Route) -> frozenset[str]:
    # Any query may have a parameter that is not known.
    codes = {*ALWAYS, "unauthorized", "forbidden", "invalid_request"}
    if route.verb not in ENGINELESS:
        codes.update(ENGINE)
    if route.body is not None:
        codes.update(BODY)
    return frozenset(codes)

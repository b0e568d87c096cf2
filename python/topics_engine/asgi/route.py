"""What a route is: a method, a path, the verb behind it, and all that its clients must know."""

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
    "boolean",
    "config",
    "integer",
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
    of: tuple[Field, ...] = ()
    """The fields of the objects in it."""


def fields(*lines: str, **of: tuple[Field, ...]) -> tuple[Field, ...]:
    """Fields written one to a line: `name!: kind: summary`; `!` marks one that must be there. `of`
    are, by name, the fields of the objects in a field.
    """
    made = []
    for line in lines:
        name, kind, summary = (part.strip() for part in line.split(":", 2))
        plain = name.rstrip("!")
        inner = of.pop(plain, ())
        made.append(Field(plain, kind, summary, name.endswith("!"), inner))  # type: ignore[arg-type]
    assert not of, of
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table.

    `needs` are the scopes that a key must have; none: the route is open, or, of a socket, each
    message has a scope of its own. `waits` marks a verb that may be held back on purpose; it is
    given up when the client goes. `streams` marks an answer that is sent as it is made, one of
    events without end. `offers` are the content types of the answer, the first by default; `takes`
    those of the body. `codes` are the errors of this verb, beyond those that every route has.
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
        """Whether the answer ends only with its client, or the server."""
        return self.streams and ARROW not in self.offers

    @property
    def named(self) -> bool:
        """Whether the path names a topic, queue or router, which prefixes of keys bind."""
        return any(f"/:{letter}/" in f"{self.path}/" for letter in "tqr")

    @property
    def all_codes(self) -> frozenset[str]:
        """Every error that the route may answer with."""
        return frozenset(self.codes) | _common(self)


ALWAYS = ("headers_too_large", "method_not_allowed", "not_acceptable", "not_found")
ENGINE = ("internal", "not_ready", "shutting_down", "storage_unavailable", "throttled")
BODY = ("invalid_request", "payload_too_large", "request_timeout", "unsupported_media_type")


def _common(route: Route) -> frozenset[str]:
    # Any query may have a parameter that is not known.
    codes = {*ALWAYS, "unauthorized", "forbidden", "invalid_request"}
    if route.verb not in ("health", "openapi"):
        codes.update(ENGINE)
    if route.body is not None:
        codes.update(BODY)
    return frozenset(codes)

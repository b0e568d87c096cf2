"""The one table of routes, which the native module has: the router, the documentation, the OpenAPI
document and the tests are made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .. import _core
from .route import Field, Route

if TYPE_CHECKING:
    from .route import Kind


def _fields(rows: tuple[_core._FieldRow, ...]) -> tuple[Field, ...]:
    return tuple(
        Field(name, cast("Kind", kind), summary, required, or_null, tuple(words), _fields(of))
        for name, kind, summary, required, or_null, words, of in rows
    )


def _route(row: _core._RouteRow) -> Route:
    (method, path, verb, needs, summary, query, body), told, offers, takes = row
    answer, statuses, codes, waits, streams = told
    return Route(
        method,
        path,
        verb,
        tuple(needs),
        summary,
        _fields(query),
        None if body is None else _fields(body),
        answer,
        tuple(statuses),
        tuple(codes),
        waits,
        streams,
        tuple(kind.encode() for kind in offers),
        tuple(kind.encode() for kind in takes),
    )


ROUTES: tuple[Route, ...] = tuple(map(_route, _core.routes()))


def route_of(verb: str) -> Route:
    """The first route of a verb."""
    return next(route for route in ROUTES if route.verb == verb)


def body_of(verb: str) -> tuple[Field, ...]:
    """The fields of the body of a verb."""
    return route_of(verb).body or ()


def field_of(verb: str, name: str) -> Field:
    """A field of the body or of the query of a verb."""
    route = route_of(verb)
    return next(field for field in (*(route.body or ()), *route.query) if field.name == name)


CONFIG = body_of("create")
"""The fields of a topic's config."""
RECORD = field_of("write", "records").of
"""The fields of a record."""

__all__ = ["CONFIG", "RECORD", "ROUTES", "Field", "Route", "body_of", "field_of", "route_of"]

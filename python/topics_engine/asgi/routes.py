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
        Field(name, cast("Kind", kind), summary, required, _fields(of))
        for name, kind, summary, required, of in rows
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


def body_of(verb: str) -> tuple[Field, ...]:
    """The fields of the body of a verb."""
    return next(route.body or () for route in ROUTES if route.verb == verb)


CONFIG = body_of("create")
"""The fields of a topic's config."""
RECORD = next(field.of for field in body_of("write") if field.name == "records")
"""The fields of a record."""

__all__ = ["CONFIG", "RECORD", "ROUTES", "Field", "Route"]

"""The OpenAPI 3.1 document, generated from the table of routes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from .. import _core
from .answers import COMPONENTS, answer_name, answer_schema, ref
from .messages import ARROW, JSON, NDJSON, OCTETS
from .route import Field, Route
from .routes import CONFIG, RECORD, ROUTES

_TAG = {
    "oneOf": [
        {"type": "string", "description": "a tag, or with a `*` at its end a prefix"},
        {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3},
    ],
    "description": '"x", "x*", ["tag", "Eq", "x"] or ["tag", "Glob", "x*"]',
}
_KINDS: dict[str, dict[str, Any]] = {
    "any": {},
    "array of integers": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "array of objects": {"type": "array", "items": {"type": "object"}},
    "array of strings": {"type": "array", "items": {"type": "string"}},
    "array of strings or integers": {
        "type": "array",
        "items": {"type": ["string", "integer"]},
    },
    "boolean": {"type": "boolean"},
    "config": {"$ref": "#/components/schemas/Config"},
    "integer": {"type": "integer"},
    "integer or boolean": {"type": ["integer", "boolean"]},
    "match": {"$ref": "#/components/schemas/Match"},
    "object": {"type": "object"},
    "string": {"type": "string"},
    "string or array of strings": {"type": ["string", "array"], "items": {"type": "string"}},
    "string or integer": {"type": ["string", "integer"]},
}
PARAMETER = re.compile(r":(\w+)")


@cache
def status_of(code: str) -> int:
    """The HTTP status of an error code, from the core's table."""
    return _core.error_body(code, "")[0]


@cache
def document(version: str) -> bytes:
    """The document as JSON."""
    return json.dumps(describe(version), separators=(",", ":")).encode()


def describe(version: str) -> dict[str, Any]:
    """The document as a dict."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "topics_engine", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _ERROR,
                "Config": schema_of(CONFIG, strict=True),
                "Match": _TAG,
                "NewRecord": schema_of(RECORD),
                **COMPONENTS,
                **{answer_name(r): answer_schema(r) for r in ROUTES if JSON in r.offers},
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "detail": {"type": "object"},
            },
        }
    },
}


def operation(route: Route) -> dict[str, Any]:
    """One method of one path."""
    made: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "security": [{"key": list(route.needs)}] if route.needs else [],
        "responses": responses(route),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PARAMETER.findall(route.path)
    ]
    parameters += [
        {
            "name": field.name,
            "in": "query",
            "required": field.required,
            "description": field.summary,
            "schema": schema(field),
        }
        for field in route.query
    ]
    if parameters:
        made["parameters"] = parameters
    if route.body is not None:
        made["requestBody"] = {
            "required": any(field.required for field in route.body),
            "content": {kind.decode(): {"schema": _body(route, kind)} for kind in route.takes},
        }
    return made


def operation_id(route: Route) -> str:
    """A unique name of an operation."""
    parts = [part for part in route.path.split("/") if part and part != "v0"]
    # The same outside of /v0.
    root = ["root"] if f"/v0{route.path}" in {other.path for other in ROUTES} else []
    return "_".join(
        [route.method.lower(), *root, *(p.lstrip(":").replace(".", "_") for p in parts)]
    )


def _body(route: Route, kind: bytes) -> dict[str, Any]:
    if kind in (OCTETS, ARROW):
        return {"type": "string", "format": "binary"}
    if kind == NDJSON:
        return {"type": "string", "description": "one JSON value a line"}
    made = schema_of(route.body or ())
    if ARROW in route.offers and JSON in route.offers:
        # An answer of columns takes the fields of a scan, too.
        del made["additionalProperties"]
    return made


def schema_of(given: Iterable[Field], *, strict: bool = False) -> dict[str, Any]:
    """The schema of an object with these fields only; unless `strict`, `null` means absent."""
    given = tuple(given)
    properties = {}
    for field in given:
        value = schema(field)
        if not (strict or field.required):
            value = _or_null(value)
        properties[field.name] = value | {"description": field.summary}
    made = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [f.name for f in given if f.required]
    if required:
        made["required"] = required
    return made


def _or_null(value: dict[str, Any]) -> dict[str, Any]:
    if not value or "null" in value.get("type", ()):
        return value
    if "type" not in value:
        return {"anyOf": [value, {"type": "null"}]}
    kinds = value["type"]
    return value | {"type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}


def schema(field: Field) -> dict[str, Any]:
    """The schema of one value."""
    kind = dict(_KINDS[field.kind])
    if field.of == RECORD:
        kind["items"] = ref("NewRecord")
    elif field.of and field.kind == "array of objects":
        kind["items"] = schema_of(field.of)
    elif field.of:
        # By name; or an array of names.
        kind = {"type": ["object", "array"], "additionalProperties": schema_of(field.of)}
        kind["items"] = {"type": "string"}
    if field.words:
        kind["enum"] = list(field.words)
    if "integer" in kind.get("type", ()) and field.name != "priority":
        kind["minimum"] = 0
    if field.or_null and "type" in kind:
        kind["type"] = [kind["type"], "null"]
    return kind


def responses(route: Route) -> dict[str, Any]:
    """The responses of a route, by status."""
    content = {
        kind.partition(b";")[0].decode(): {
            "schema": ref(answer_name(route)) if kind == JSON else {"type": "string"}
        }
        for kind in route.offers
    }
    made: dict[str, Any] = {
        str(status): {"description": route.summary, "content": content} for status in route.statuses
    }
    by_status: dict[int, list[str]] = {}
    for code in sorted(route.all_codes):
        by_status.setdefault(status_of(code), []).append(code)
    error = {JSON.decode(): {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status, codes in sorted(by_status.items()):
        made[str(status)] = {"description": ", ".join(codes), "content": error}
    return made

"""Schemas of typed columns: their check, and the count of what does not fit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, cast

from . import arguments

Schema: TypeAlias = Mapping[str, Any]
"""Types by column: `"int64"`, a pyarrow type, or `{"type": "int64", "path": "a.b[0]"}`. The path of
a value is its column's name unless it is given. A `pyarrow.Schema` is one, too.
"""

RAW: Final = "_raw"
MISFITS: Final = "_misfits"
COLUMNS: Final = (
    "topic",
    "seq",
    "ts",
    "node",
    "tag",
    "meta",
    "data",
    "gap_to",
    "gap_reason",
)
"""The columns that every topic has."""
ALLOWED = 'a mapping of names to types, such as {"user": "int64"}, or a pyarrow schema'


def fields(name: str, value: object) -> dict[str, Any]:
    """A schema as requests have it. The engine knows types and paths, and refuses wrong ones."""
    if not isinstance(value, Mapping):
        if not _is_of_pyarrow(value) or not hasattr(value, "field"):
            arguments.refuse(name, ALLOWED, value)
        value = {field.name: field.type for field in cast("Any", value)}
    found: dict[str, Any] = {}
    for column, kind in value.items():
        if not isinstance(column, str):
            arguments.refuse(name, ALLOWED, value)
        where = f"{name}[{column!r}]"
        if isinstance(kind, Mapping):
            found[column] = {_text(where, k): _type(where, v) for k, v in kind.items()}
        else:
            found[column] = _type(where, kind)
    return found


def _type(name: str, value: object) -> str:
    return _text(name, str(value) if _is_of_pyarrow(value) else value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        arguments.refuse(name, "the name of a type, or a mapping with `type` and `path`", value)
    return value


def _is_of_pyarrow(value: object) -> bool:
    return type(value).__module__.split(".")[0] == "pyarrow"


def count_misfits(values: Iterable[str | None]) -> dict[str, int]:
    """How many values of each column did not fit, from the values of `_misfits`."""
    found: Counter[str] = Counter()
    for value in values:
        if value is not None:
            found.update(json.loads(value))
    return dict(found)

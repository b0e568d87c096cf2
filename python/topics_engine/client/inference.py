"""A proposal for a schema: types that all of some values fit."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, Final

from ..errors import InvalidRequest
from .schema import COLUMNS, MISFITS, RAW

MAX_FIELDS: Final = 256
MAX_STEPS: Final = 32
MAX_NAME: Final = 1024
ZONED = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
NAIVE_TIME = re.compile(ZONED, re.ASCII)
ZONED_TIME = re.compile(ZONED + r"(?:[Zz]|[+-]\d\d(?::?\d\d)?)", re.ASCII)
PLAIN_KEY = re.compile(r'[^.\[\]"]+')


class _Values:
    """The values that were seen at one path."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.members: dict[str, _Values] = {}
        self.least = self.most = 0

    def add(self, value: Any, depth: int = 0) -> None:
        if value is None:
            return
        if isinstance(value, dict) and depth < MAX_STEPS:
            self.kinds["object"] += 1
            for key, member in value.items():
                self.members.setdefault(key, _Values()).add(member, depth + 1)
            return
        self.kinds[self._kind(value)] += 1

    def _kind(self, value: Any) -> str:
        match value:
            case bool():
                return "bool"
            case int():
                self.least, self.most = min(self.least, value), max(self.most, value)
                return "int"
            case float():
                return "double" if abs(value) != float("inf") else "string"
            case str():
                return _kind_of_text(value)
        return "string"

    def type(self) -> str | None:
        """The type that all of the values fit; `None` for objects and without values."""
        match sorted(self.kinds):
            case [] | ["object"]:
                return None
            case ["int"]:
                return self._integer()
            case ["double"] | ["double", "int"]:
                return "double"
            case [("bool" | "date" | "timestamp[us]" | "timestamp[us, UTC]") as kind]:
                return kind
        return "string"

    def _integer(self) -> str:
        if self.least >= -(1 << 63) and self.most < 1 << 63:
            return "int64"
        if self.least >= 0 and self.most < 1 << 64:
            return "uint64"
        return "decimal(38, 0)" if max(-self.least, self.most) < 10**38 else "string"


def _kind_of_text(value: str) -> str:
    for pattern, kind, parse in (
        (DATE, "date", date.fromisoformat),
        (NAIVE_TIME, "timestamp[us]", datetime.fromisoformat),
        (ZONED_TIME, "timestamp[us, UTC]", datetime.fromisoformat),
    ):
        if pattern.fullmatch(value):
            try:
                parse(value.upper())
            except ValueError:
                return "string"
            return kind
    return "string"


def infer(payloads: Iterable[Any]) -> dict[str, Any]:
    """A schema that all of these values fit, members of objects by their paths."""
    root = _Values()
    for payload in payloads:
        root.add(payload)
    found: list[tuple[str, str, int]] = []
    _collect(root, "", found)
    kept = sorted(sorted(range(len(found)), key=lambda at: -found[at][2])[:MAX_FIELDS])
    schema: dict[str, Any] = {}
    paths = {path for path, _, _ in found}
    for path, kind, _ in (found[at] for at in kept):
        name = path
        while name in (*COLUMNS, RAW, MISFITS) or (name != path and name in paths):
            name += "_field" if name == path else "_"
        schema[name] = kind if name == path else {"type": kind, "path": path}
    return schema


def _collect(values: _Values, path: str, found: list[tuple[str, str, int]]) -> None:
    kind = values.type()
    if kind is not None:
        found.append((path or "$", kind, values.kinds.total()))
        return
    for key, member in values.members.items():
        try:
            key.encode()
        except UnicodeEncodeError:
            continue
        if PLAIN_KEY.fullmatch(key) and not (key == "$" and not path):
            step = f".{key}" if path else key
        else:
            step = f"[{json.dumps(key)}]"
        if len((path + step).encode()) <= MAX_NAME:
            _collect(member, path + step, found)


def parsed(data: object) -> Any:
    """The JSON value of a payload; `None` of one that is none."""
    if not isinstance(data, bytes | memoryview):
        return data
    try:
        return json.loads(bytes(data), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise InvalidRequest(f"{name} is not JSON")

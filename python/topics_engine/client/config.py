"""The options of a topic: names and values as Python has them, and as the engine has them.

Durations are seconds, a `timedelta` or text here, and integer milliseconds in the engine's fields,
whose names end with `_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequest
from ..names import nearest
from ..options import KINDS
from . import arguments

DURATIONS = frozenset(name for name, kind in KINDS.items() if kind[0] == "duration")


def fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the engine's fields."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in KINDS:
            hint = nearest(name, KINDS)
            raise InvalidRequest(f"unknown option `{name}`{hint}", detail={"field": name})
        found[f"{name}_ms" if name in DURATIONS else name] = _value(name, value)
    return found


def _value(name: str, value: object) -> object:
    """The value of an option, checked."""
    kind, *words = KINDS[name]
    if value is None and kind.endswith("?"):
        return None
    match kind:
        case "duration":
            return arguments.milliseconds(name, value)
        case "size":
            return arguments.size(name, value, 0)
        case "flag":
            return arguments.flag(name, value)
        case "words":
            return arguments.choice(name, value, words)
        case "name?":
            return arguments.name(name, value)
        case "integer?":
            allowed = "an integer of 32 bits or None"
            return arguments.integer(name, value, allowed, -(1 << 31), (1 << 31) - 1)
    return arguments.count(name, value, 0, arguments.MAX_INT)


def shown(config: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's fields as options, with durations in seconds."""
    found: dict[str, Any] = {}
    for field, value in config.items():
        name = option_name(field)
        found[name] = value / 1000 if name in DURATIONS else value
    return found


def option_name(field: str) -> str:
    """The option of a field of the engine."""
    name = field.removesuffix("_ms")
    return name if name in DURATIONS else field

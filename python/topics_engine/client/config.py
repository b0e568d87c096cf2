"""The options of a topic: names and values as Python has them, and as the engine has them.

Durations are seconds, a `timedelta` or text here, and integer milliseconds in the engine's fields,
whose names end with `_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequest
from . import arguments

DURATIONS = frozenset({"claim_jitter", "idempotency_window", "lease", "retry_backoff", "ttl"})
NAMES = (
    "auto_create",
    "auto_priority",
    "cap_bytes",
    "cap_records",
    "claim_jitter",
    "dead_letter",
    "dedupe_node",
    "discard",
    "durability",
    "durable",
    "idempotency_window",
    "lease",
    "leases_durable",
    "max_deliveries",
    "paused",
    "priority",
    "retry_backoff",
    "ttl",
    "type",
)


def fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the engine's fields."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in NAMES:
            hint = arguments.nearest(name, NAMES)
            raise InvalidRequest(f"unknown option `{name}`{hint}", detail={"field": name})
        if name in DURATIONS:
            found[f"{name}_ms"] = arguments.milliseconds(name, value)
        else:
            found[name] = value
    return found


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

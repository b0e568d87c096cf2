"""Times and durations of options."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from .errors import InvalidOption

_UNITS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def time_of(option: str, given: Any) -> int:
    """Milliseconds since the epoch, from a number or from ISO 8601 text with a zone."""
    if type(given) is int and given >= 0:
        return given
    text = given.strip() if isinstance(given, str) else ""
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None:
        raise InvalidOption(
            f'"{option}" is milliseconds since 1970, an ISO 8601 time such as '
            f"2026-01-31T09:00:00Z, or JSON with one for each topic, not {given!r}"
        )
    if found.tzinfo is None:
        raise InvalidOption(
            f'"{option}" {text!r} has no zone: add one, for example {text.replace(" ", "T")}Z'
        )
    ms = round(found.timestamp() * 1000)
    if ms < 0:
        raise InvalidOption(f'"{option}" {text!r} is before 1970')
    return ms


def duration_of(option: str, text: str) -> float:
    """Seconds, from text such as `500ms`, `30s`, `15m` or `1h`."""
    found = re.fullmatch(r"(\d+)\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise InvalidOption(f'"{option}" is a duration such as 500ms, 30s or 15m, not {text!r}')
    return int(found[1]) * _UNITS[found[2]]
